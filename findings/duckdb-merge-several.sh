#!/usr/bin/env bash
# DuckDB 2.0.1: where several rows of the source match one row of the target, MERGE and UPDATE FROM
# raise no error, as SQL asks, but take one of them; which one depends on how many rows the target
# has. A change feed with two changes of a key must be folded to one row for each key before.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==2.0.1
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import duckdb

STATEMENTS = {
    "MERGE": "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v",
    "UPDATE FROM": "UPDATE t SET v = s.v FROM s WHERE t.k = s.k",
}
for words, statement in STATEMENTS.items():
    for rows in (1, 10, 1000):
        db = duckdb.connect()
        db.execute("SET threads = 1")
        db.execute(f"CREATE TABLE t AS SELECT i AS k, 'old' AS v FROM range({rows}) AS r(i)")
        db.execute("CREATE TABLE s AS FROM (VALUES (0, 'first'), (0, 'second'), (0, 'third')) AS x(k, v)")
        db.execute(statement)
        print(words, "into", rows, "rows:", db.execute("SELECT v FROM t WHERE k = 0").fetchall())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
MERGE into 1 rows: [('first',)]
MERGE into 10 rows: [('third',)]
MERGE into 1000 rows: [('third',)]
UPDATE FROM into 1 rows: [('first',)]
UPDATE FROM into 10 rows: [('third',)]
UPDATE FROM into 1000 rows: [('third',)]
SEEN

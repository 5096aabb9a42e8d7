#!/usr/bin/env bash
# dlt 1.31.0 with DuckDB 2.0.1: rows given as Python values are not the rows that are loaded. Empty
# bytes become NULL and one character, U+F02B, in a second column body__v_text, which appears in the
# table; NaN becomes NULL; -0.0 becomes 0.0. Nothing is reported.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet dlt==1.31.0 duckdb==2.0.1
(cd "$work" && RUNTIME__DLTHUB_TELEMETRY=false "$work/venv/bin/python" - >"$work/seen" 2>"$work/errors") <<'PYTHON' || { cat "$work/errors"; exit 1; }
import dlt
import duckdb

rows = [
    {"id": 1, "body": b"ab", "x": 1.5},
    {"id": 2, "body": b"", "x": 2.5},
    {"id": 3, "body": b"c", "x": float("nan")},
    {"id": 4, "body": b"d", "x": -0.0},
]
loaded = dlt.destinations.duckdb("loaded.duckdb")
pipeline = dlt.pipeline("finding", destination=loaded, dataset_name="out", pipelines_dir="state")
pipeline.run(rows, table_name="t")
found = duckdb.connect("loaded.duckdb").sql(
    "SELECT * EXCLUDE (_dlt_load_id, _dlt_id) FROM out.t ORDER BY id"
)
print(found.columns)
for row in found.fetchall():
    print(ascii(row))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
['id', 'body', 'x', 'body__v_text']
(1, b'ab', 1.5, None)
(2, None, 2.5, '\uf02b')
(3, b'c', None, None)
(4, b'd', 0.0, None)
SEEN

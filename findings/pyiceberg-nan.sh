#!/usr/bin/env bash
# pyiceberg 0.12.0 with pyarrow 26.0.1: rows that a scan by a condition finds stay when the same condition
# deletes, if they are NaN (a value of every float column), or NULL under NOT IN. And whether a scan finds NaN
# depends on the other rows of its file: `x != 5` finds it before a delete, and not after it, though it is there.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1
"$work/venv/bin/python" -W ignore - "$work" >"$work/seen" 2>/dev/null <<'PYTHON'
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

ROWS = pa.table({"v": pa.array([1, 2, 3, 4]), "x": pa.array([1.0, None, float("nan"), 5.0])})
CONDITIONS = ("x != 5", "x not in (5, 6)", "x is not null", "v > 1 and x != 5")
catalog = SqlCatalog("c", uri=f"sqlite:///{sys.argv[1]}/c.db", warehouse=f"file://{sys.argv[1]}")
catalog.create_namespace("n")
for number, condition in enumerate(CONDITIONS):
    table = catalog.create_table(f"n.t{number}", ROWS.schema)
    table.append(ROWS)
    found = table.scan(condition).to_arrow()["x"].to_pylist()
    table.delete(condition)
    left = table.scan().to_arrow()["x"].to_pylist()
    again = table.scan(condition).to_arrow()["x"].to_pylist()
    print(f"{condition}: found {found}, left {left}, found again {again}")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
x != 5: found [1.0, nan], left [None, nan, 5.0], found again []
x not in (5, 6): found [1.0, None, nan], left [None, nan, 5.0], found again [None, nan]
x is not null: found [1.0, nan, 5.0], left [None, nan], found again [nan]
v > 1 and x != 5: found [nan], left [1.0, None, nan, 5.0], found again [nan]
SEEN

#!/usr/bin/env bash
# Daft 0.7.26: -0.0 is less than 0.0 and not equal to it, in filters and in groups, where IEEE 754
# and SQL engines say equal; NaN is more than any number. A filter `x = 0` therefore loses rows.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet daft==0.7.26
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import daft
from daft import col

frame = daft.from_pydict({"x": [0.0, -0.0, float("nan")]})
tests = {"x = 0": col("x") == 0.0, "x < 0": col("x") < 0.0, "x > 100": col("x") > 100.0}
for words, test in tests.items():
    print(words, frame.where(test).to_pydict()["x"])
print("groups", frame.groupby("x").agg(col("x").count().alias("rows")).count_rows())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
x = 0 [0.0]
x < 0 [-0.0]
x > 100 [nan]
groups 3
SEEN

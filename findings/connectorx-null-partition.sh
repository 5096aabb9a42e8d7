#!/usr/bin/env bash
# connectorx 0.4.6, pandas 2.3.3, pyarrow 26.0.1: a read in partitions loses a row whose partition
# column is NULL, without a word. As pandas it returns as many rows as the table has, one of them
# made of zeros; as Arrow it returns one row less. Without partitions all rows are right.
# Partitions are ranges of the column, in none of which NULL is; rows are counted before.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet connectorx==0.4.6 pandas==2.3.3 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/orders.db" >"$work/seen" <<'PYTHON'
import sqlite3
import sys

import connectorx

file = sqlite3.connect(sys.argv[1])
file.execute("CREATE TABLE orders (region INTEGER, amount INTEGER)")
file.executemany("INSERT INTO orders VALUES (?, ?)", [(1, 10), (2, 20), (None, 30), (9, 40)])
file.commit()


def amounts(**how: object) -> list[int]:
    found = connectorx.read_sql(f"sqlite://{sys.argv[1]}", "SELECT * FROM orders", **how)
    column = found["amount"]
    return sorted(column.to_pylist() if hasattr(column, "to_pylist") else column.tolist())


parts = {"partition_on": "region", "partition_num": 3}
print("whole ", amounts())
print("pandas", amounts(**parts))
print("arrow ", amounts(return_type="arrow", **parts))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
whole  [10, 20, 30, 40]
pandas [0, 10, 20, 40]
arrow  [10, 20, 40]
SEEN

#!/usr/bin/env bash
# DuckDB 2.0.1: read_csv guesses the types of columns from the first 20,480 rows. If a column has
# whole numbers there, a number with a fraction further down is rounded to a whole one: 1.5 is 2 and
# -0.4 is 0, without an error, also when the file is loaded into a table. Polars 2.1.0 raises an
# error at the same row. sample_size=-1, or types that are named, keep the fraction.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==2.0.1 polars==2.1.0
cd "$work"
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
from pathlib import Path

import duckdb
import polars

lines = ["id,price", *(f"{i},{i}" for i in range(30_000)), "30000,1.5", "30001,-0.4"]
Path("prices.csv").write_text("\n".join(lines) + "\n")
for words, options in {"default": "", "sample_size=-1": ", sample_size=-1"}.items():
    query = f"SELECT price FROM read_csv('prices.csv'{options}) WHERE id >= 29999 ORDER BY id"
    print("DuckDB,", words, [str(price) for (price,) in duckdb.sql(query).fetchall()])
try:
    print("Polars", polars.read_csv("prices.csv").tail(3)["price"].to_list())
except polars.exceptions.ComputeError:
    print("Polars: an error")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
DuckDB, default ['29999', '2', '0']
DuckDB, sample_size=-1 ['29999.0', '1.5', '-0.4']
Polars: an error
SEEN

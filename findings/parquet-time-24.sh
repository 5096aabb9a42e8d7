#!/usr/bin/env bash
# DuckDB 2.0.1 writes TIME '24:00:00', the end of a day (ISO 8601, PostgreSQL), to Parquet and reads
# it back. Polars 2.1.0 reads NULL, pyarrow 26.0.1 the beginning of the day: an interval until
# midnight has no end in one, and is empty in the other. Neither says so.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1
"$work/venv/bin/python" - "$work/shifts.parquet" >"$work/seen" <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow.parquet as pq

path = sys.argv[1]
duckdb.sql(f"COPY (SELECT TIME '24:00:00' AS ends) TO '{path}'")
print("DuckDB", duckdb.sql(f"SELECT ends::VARCHAR FROM '{path}'").fetchall()[0][0])
print("Polars", pl.read_parquet(path)["ends"].to_list()[0])
print("pyarrow", pq.read_table(path)["ends"][0].as_py())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
DuckDB 24:00:00
Polars None
pyarrow 00:00:00
SEEN

#!/usr/bin/env bash
# DuckDB 1.5.5 with its excel extension: days of January and February 1900 come one day early, because
# Excel counts a 29 February 1900 that never was and its serial numbers before it are taken as those after
# it; openpyxl reads the days that Excel shows. A duration of 30 hours is
# six o'clock. No error is raised.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==1.5.5 duckdb-extensions==1.5.5 duckdb-extension-excel==1.5.5 \
    openpyxl==3.1.5
HOME="$work" "$work/venv/bin/python" -W ignore - "$work/people.xlsx" >"$work/seen" <<'PYTHON'
import sys
from datetime import date, timedelta

import duckdb
import duckdb_extensions
import openpyxl

book = openpyxl.Workbook()
for row in (
    ("born", "worked"),
    (date(1900, 2, 1), timedelta(hours=8)),
    (date(1900, 3, 1), timedelta(hours=30)),
):
    book.active.append(row)
book.save(sys.argv[1])
for row in openpyxl.load_workbook(sys.argv[1]).active.iter_rows(min_row=2, values_only=True):
    print("openpyxl", *row)
duckdb_extensions.import_extension("excel")
database = duckdb.connect()
database.sql("LOAD excel")
for row in database.sql(f"SELECT born::TEXT, worked::TEXT FROM read_xlsx('{sys.argv[1]}')").fetchall():
    print("DuckDB", *row)
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
openpyxl 1900-02-01 00:00:00 8:00:00
openpyxl 1900-03-01 00:00:00 1 day, 6:00:00
DuckDB 1900-01-31 08:00:00
DuckDB 1900-03-01 06:00:00
SEEN

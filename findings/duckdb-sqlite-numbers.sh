#!/usr/bin/env bash
# DuckDB 1.5.5 with its sqlite extension: a column that SQLite declares as NUMERIC or DECIMAL comes as a
# double, so two whole numbers above 2^53, which SQLite keeps exactly, become one; a join or a GROUP BY
# takes them for equal, and a filter finds both. A time that SQLite keeps as a Julian day (a real, as its
# documentation has it and julianday() makes it) is read as seconds since 1970: a day of 2024 is 29 January
# 1970. No error is raised. Safe: `sqlite_all_varchar`, in which every value comes as its text.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet duckdb==1.5.5 duckdb-extensions==1.5.5 \
    duckdb-extension-sqlite-scanner==1.5.5
HOME="$work" "$work/venv/bin/python" -W ignore - "$work/shop.db" >"$work/seen" <<'PYTHON'
import sqlite3
import sys

import duckdb
import duckdb_extensions

with sqlite3.connect(sys.argv[1]) as source:
    source.execute("CREATE TABLE parcels (label NUMERIC(20), sent DATETIME, due DATE)")
    source.executemany(
        "INSERT INTO parcels VALUES (?, julianday(?), julianday(?))",
        [
            (9007199254740992, "2024-01-02 06:00", "2024-01-09"),
            (9007199254740993, "2024-03-05 18:00", "2024-03-11"),
        ],
    )
print(source.execute("SELECT count(DISTINCT label), min(datetime(sent)) FROM parcels").fetchall())
duckdb_extensions.import_extension("sqlite_scanner")
database = duckdb.connect()
database.sql("LOAD sqlite_scanner")
database.sql(f"ATTACH '{sys.argv[1]}' AS shop (TYPE sqlite)")
for query in (
    "SELECT label::HUGEINT, count(*) FROM shop.parcels GROUP BY 1",
    "SELECT count(*) FROM shop.parcels WHERE label = 9007199254740993",
    "SELECT sent::TEXT, due::TEXT FROM shop.parcels ORDER BY sent",
):
    print(database.sql(query).fetchall())
database.sql("SET sqlite_all_varchar = true")
print(database.sql("SELECT label, sent FROM shop.parcels ORDER BY sent").fetchall())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
[(2, '2024-01-02 06:00:00')]
[(9007199254740992, 2)]
[(2,)]
[('1970-01-29 11:25:11.75', '1970-01-29'), ('1970-01-29 11:26:15.25', '1970-01-29')]
[('9007199254740992', '2460311.75'), ('9007199254740993', '2460375.25')]
SEEN

#!/usr/bin/env bash
# sqldiff 3.40.1 (Debian 12's sqlite3-tools): the tool of SQLite that prints what makes one database
# equal to another compares values by the columns' collations. In a NOCASE column a name that changed
# its capitals, in an RTRIM column one that lost its trailing blanks, and an integer that became a real
# are unchanged, so the database that its output makes differs.
# Needs Debian 12 (apt-get download, no root).
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -qq sqlite3-tools=3.40.1-2+deb12u2 2>/dev/null)
dpkg-deb -x "$work"/sqlite3-tools_*.deb "$work/tools"
python3 - "$work" <<'PYTHON'
import sqlite3
import sys

for name, row in (("old", ("abc", "left", 3, "same")), ("new", ("ABC", "left  ", 3.0, "other"))):
    with sqlite3.connect(f"{sys.argv[1]}/{name}.db") as database:
        database.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT COLLATE NOCASE, b TEXT COLLATE RTRIM, c, d)"
        )
        database.execute("INSERT INTO t VALUES (1, ?, ?, ?, ?)", row)
PYTHON
"$work/tools/usr/bin/sqldiff" "$work/old.db" "$work/new.db" | tee "$work/seen"
diff "$work/seen" - <<'SEEN'
UPDATE t SET d='other' WHERE id=1;
SEEN

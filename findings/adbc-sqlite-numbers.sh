#!/usr/bin/env bash
# adbc-driver-sqlite 1.13.0: a column of SQLite may hold values of several types. Where a text or a
# blob stands in it, numbers of the column come as texts of seven digits: 3.141592653589793 is
# '3.141593e+00', though SQLite itself makes all its digits of it. Where a float follows an integer,
# the integer comes as a double: 9007199254740993 is 9007199254740992. Nothing is reported.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet adbc-driver-sqlite==1.13.0 adbc-driver-manager==1.13.0 \
    pyarrow==26.0.1
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import adbc_driver_sqlite.dbapi as sqlite

columns = {
    "before a text": ("3.141592653589793", "12345678.9", "'n/a'"),
    "after a blob": ("x'00ff'", "0.1"),
    "before a float": ("9007199254740993", "1.5"),
    "by itself": ("3.141592653589793", "12345678.9"),
}
with sqlite.connect() as connection, connection.cursor() as cursor:
    for number, (words, values) in enumerate(columns.items()):
        cursor.execute(f"CREATE TABLE t{number} (x)")
        cursor.execute(f"INSERT INTO t{number} VALUES {', '.join(f'({v})' for v in values)}")
        cursor.execute(f"SELECT x FROM t{number}")
        seen = cursor.fetch_arrow_table()
        print(words, seen[0].to_pylist())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
before a text ['3.141593e+00', '1.234568e+07', 'n/a']
after a blob [b'\x00\xff', b'1.000000e-01']
before a float [9007199254740992.0, 1.5]
by itself [3.141592653589793, 12345678.9]
SEEN

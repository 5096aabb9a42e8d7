#!/usr/bin/env bash
# mysql-connector-python 26.10.0: a cursor with `prepared=True` reads a negative TIME with its hours,
# minutes and seconds positive, so minus an hour and a half is plus an hour and a half, and writes
# minus an hour and a half as -46:30:00. A value that was written and read back by it looks right, and a
# plain cursor of the same connection reads and writes all of them right. No error is raised.
# Needs MariaDB's server (Debian 12's mariadb-server), which runs here without a network.
set -euo pipefail
work=$(mktemp -d)
trap '{ kill "${server-}" && wait "$server"; } 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet mysql-connector-python==26.10.0
mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$work/data" --skip-test-db \
    --auth-root-authentication-method=normal >/dev/null
mariadbd --no-defaults --user="$(id -un)" --datadir="$work/data" --socket="$work/socket" \
    --skip-networking 2>"$work/log" &
server=$!
for _ in {1..300}; do [ -S "$work/socket" ] && break || sleep 0.2; done
"$work/venv/bin/python" - "$work/socket" >"$work/seen" <<'PYTHON'
import sys
from datetime import timedelta

import mysql.connector

client = mysql.connector.connect(unix_socket=sys.argv[1], user="root", use_pure=True)
plain, prepared = client.cursor(), client.cursor(prepared=True)


def one(cursor, query, *values):
    cursor.execute(query, values)
    return cursor.fetchone()[0]


for text in ("-00:30:00", "-01:30:00", "-30:00:00", "30:00:00"):
    seen = [one(cursor, f"SELECT TIME '{text}'") for cursor in (plain, prepared)]
    print("read ", text, *(f"{value.total_seconds() / 3600:g} h" for value in seen))
for hours in (-0.5, -1.5, -30, 30):
    value = timedelta(hours=hours)
    seen = [one(cursor, "SELECT CAST(%s AS CHAR)", value) for cursor in (plain, prepared)]
    back = one(prepared, "SELECT CAST(%s AS TIME)", value)
    print("write", f"{hours:g} h", *seen, f"and back: {back.total_seconds() / 3600:g} h")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
read  -00:30:00 -0.5 h 0.5 h
read  -01:30:00 -1.5 h 1.5 h
read  -30:00:00 -30 h -18 h
read  30:00:00 30 h 30 h
write -0.5 h -00:30:00 -47:30:00 and back: -0.5 h
write -1.5 h -01:30:00 -46:30:00 and back: -1.5 h
write -30 h -30:00:00 -66:00:00 and back: -30 h
write 30 h 30:00:00 30:00:00 and back: 30 h
SEEN

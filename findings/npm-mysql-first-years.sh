#!/usr/bin/env bash
# mysql2 3.24.6 and mariadb 3.5.4 (npm) move a year below 100 to 1900 or 2000, and the kind of query
# decides which: 0001-01-01, the least date of many programs, is 1901 as a date, and as a datetime 2001 by
# query and 1901 by execute. By query a datetime of the years 13 to 31 is an invalid date, null in JSON.
# The server keeps what was written, and with `dateStrings` both packages return it.
# Needs MariaDB's server (Debian 12's mariadb-server), which runs here without a network.
set -euo pipefail
work=$(mktemp -d)
trap '{ kill "${server-}" && wait "$server"; } 2>/dev/null || true; rm -rf "$work"' EXIT
npm install --silent --prefix "$work" mysql2@3.24.6 mariadb@3.5.4 >/dev/null
mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$work/data" --skip-test-db \
    --auth-root-authentication-method=normal >/dev/null
mariadbd --no-defaults --user="$(id -un)" --datadir="$work/data" --socket="$work/socket" \
    --skip-networking 2>"$work/log" &
server=$!
for _ in {1..300}; do [ -S "$work/socket" ] && break || sleep 0.2; done
cat >"$work/read.mjs" <<'JAVASCRIPT'
import mariadb from "mariadb"
import mysql2 from "mysql2/promise"

const options = { socketPath: process.argv[2], user: "root" }
const query = `SELECT DATE '0001-01-01' AS d, TIMESTAMP '0001-01-01 06:00:00' AS t,
    TIMESTAMP '0013-01-01 06:00:00' AS u`
for (const dateStrings of [false, true]) {
    const one = await mysql2.createConnection({ ...options, dateStrings })
    const other = await mariadb.createConnection({ ...options, dateStrings })
    console.log("mysql2 query   ", JSON.stringify((await one.query(query))[0][0]))
    console.log("mysql2 execute ", JSON.stringify((await one.execute(query))[0][0]))
    console.log("mariadb query  ", JSON.stringify((await other.query(query))[0]))
    console.log("mariadb execute", JSON.stringify((await other.execute(query))[0]))
    await one.end()
    await other.end()
}
JAVASCRIPT
TZ=UTC node "$work/read.mjs" "$work/socket" >"$work/seen"
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
mysql2 query    {"d":"1901-01-01T00:00:00.000Z","t":"2001-01-01T06:00:00.000Z","u":null}
mysql2 execute  {"d":"1901-01-01T00:00:00.000Z","t":"1901-01-01T06:00:00.000Z","u":"1913-01-01T06:00:00.000Z"}
mariadb query   {"d":"1901-01-01T00:00:00.000Z","t":"2001-01-01T06:00:00.000Z","u":null}
mariadb execute {"d":"1901-01-01T00:00:00.000Z","t":"1901-01-01T06:00:00.000Z","u":"1913-01-01T06:00:00.000Z"}
mysql2 query    {"d":"0001-01-01","t":"0001-01-01 06:00:00","u":"0013-01-01 06:00:00"}
mysql2 execute  {"d":"0001-01-01","t":"0001-01-01 06:00:00","u":"0013-01-01 06:00:00"}
mariadb query   {"d":"0001-01-01","t":"0001-01-01 06:00:00","u":"0013-01-01 06:00:00"}
mariadb execute {"d":"0001-01-01","t":"0001-01-01 06:00:00","u":"0013-01-01 06:00:00"}
SEEN

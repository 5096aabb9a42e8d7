#!/usr/bin/env bash
# SQLAlchemy 2.1.9 with Python's sqlite3: an integer that SQLite holds exactly in a column declared NUMERIC
# comes as another one from 2^53 on, though it comes as an exact Decimal. The warning that is given asks to
# store such numbers as integers, which these are; the driver alone returns them.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet sqlalchemy==2.1.9
"$work/venv/bin/python" -W ignore - "$work/x.db" >"$work/seen" <<'PYTHON'
import sqlite3
import sys

import sqlalchemy

file = sqlite3.connect(sys.argv[1])
file.execute("CREATE TABLE accounts (number NUMERIC(20, 2))")
file.executemany("INSERT INTO accounts VALUES (?)", [(2**53,), (2**53 + 1,), (12345678901234567,)])
file.commit()
engine = sqlalchemy.create_engine(f"sqlite:///{sys.argv[1]}")
accounts = sqlalchemy.Table("accounts", sqlalchemy.MetaData(), autoload_with=engine)
stored = file.execute("SELECT typeof(number), number FROM accounts").fetchall()
with engine.connect() as connection:
    for row, given in zip(stored, connection.scalars(sqlalchemy.select(accounts.c.number)), strict=True):
        print(*row, repr(given))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
integer 9007199254740992 Decimal('9007199254740992.00')
integer 9007199254740993 Decimal('9007199254740992.00')
integer 12345678901234567 Decimal('12345678901234568.00')
SEEN

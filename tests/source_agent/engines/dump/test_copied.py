"""Files that the servers themselves write are read as the tables that they hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from driftline import errors
from hypothesis import settings

from tests.harness.legacies import OfMariaDB, OfPostgreSQL
from tests.harness.servers import MariaDB, PostgreSQL
from tests.source_agent.engines.dump.folders import Accounts

COPY = """
separator = "\\t"
quote = ""
null = "\\\\N"
escape = "postgresql"
header = false
[columns]
id = "int8"
name = "text"
"""
PIECES = [
    "\\",
    "\t",
    "\n",
    "\r",
    "\\N",
    "N",
    "\\.",
    "\b",
    "\f",
    "\v",
    '"',
    ",",
    "é",
    "a",
    " ",
    "0",
    "x",
]


def texts() -> list[str | None]:
    seed = random.randrange(2**32)
    r, count = random.Random(seed), 50_000 if settings.get_current_profile_name() == "soak" else 800
    made = ["".join(r.choices(PIECES, k=r.randint(0, 7))) for _ in range(count)]
    return [None, "\\N", "", "\\", "C:\\temp", "\\.", *made]


def test_copy_of_postgresql_is_the_table(postgresql: PostgreSQL, tmp_path: Path) -> None:
    legacy, every = OfPostgreSQL(postgresql), texts()
    try:
        with postgresql.superuser(legacy.database) as connection:
            connection.execute("CREATE TABLE t (id bigint, name text)")
            with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as to:
                for row in enumerate(every):
                    to.write_row(row)
            with connection.cursor() as cursor, cursor.copy("COPY t TO STDOUT") as out:
                data = b"".join(map(bytes, out))
            shown = connection.execute("SELECT id::text, name FROM t").fetchall()
    finally:
        legacy.close()
    accounts = Accounts(tmp_path, COPY)
    accounts.put(data)
    assert sorted(map(tuple, accounts.read()), key=str) == sorted(shown, key=str)
    assert len(shown) == len(every)


def test_outfile_of_mariadb_is_refused_where_it_has_escapes(
    mariadb: MariaDB, tmp_path: Path
) -> None:
    """A zero byte, and a line end behind a backslash, are none of COPY's; nothing is guessed."""
    legacy = OfMariaDB(mariadb)
    try:
        for number, text in enumerate(("a\0b", "a\nb", "a\tb", "plain")):
            file = tmp_path / f"out{number}"
            file.parent.chmod(0o777)
            legacy.run(
                f"CREATE TABLE t{number} (id int, name text)",
                f"INSERT INTO t{number} VALUES (1, X'{text.encode().hex()}')",
                f"SELECT * FROM t{number} INTO OUTFILE '{file}'",
            )
            accounts = Accounts(tmp_path / str(number), COPY)
            accounts.put(file.read_bytes())
            if text == "plain":
                assert accounts.read() == [["1", text]]
                continue
            with pytest.raises(errors.DriftlineError):
                accounts.read()
    finally:
        legacy.close()

"""Files that the servers themselves write are read as the tables that they hold."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import errors
from hypothesis import settings

from tests.harness.family import FAMILY
from tests.harness.legacies import OfPostgreSQL, of_family
from tests.harness.mysql_server import own_server
from tests.harness.servers import FamilyServer, PostgreSQL
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


OUTFILE = """
separator = %s
quote = %s
null = "\\\\N"
escape = "mysql"
header = false
[columns]
id = "int8"
name = "text"
at = "timestamp"
more = "text"
n = "numeric(9,2)"
"""
OF_TWO = (OUTFILE % ('"\\t"', '""')).split("at =")[0]
WAYS = {  # as the server writes them: clause, separator, quote
    "as mysqldump --tab": ("", "\t", ""),
    "enclosed": ("FIELDS TERMINATED BY ',' ENCLOSED BY '\"'", ",", '"'),
    "optionally": ("FIELDS TERMINATED BY ';' OPTIONALLY ENCLOSED BY '\"'", ";", '"'),
    "single quotes": ("FIELDS TERMINATED BY '|' OPTIONALLY ENCLOSED BY ''''", "|", "'"),
}
MORE = ["\0", "\x1a", "\\0", "'", ";", "|", "\\\n", "\r\n", '\\"', "b", "t", "Z", "n"]


@pytest.fixture(scope="module", params=FAMILY)
def exporter(request: pytest.FixtureRequest) -> Iterator[FamilyServer]:
    """A server that may write a file wherever its system user may."""
    shared: FamilyServer = request.getfixturevalue(request.param)
    if request.param == "mariadb":
        yield shared
        return
    with own_server("mysql", ["--secure-file-priv="]) as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
def test_outfile_is_the_table(exporter: FamilyServer, tmp_path: Path, way: str) -> None:
    clause, separator, quote = WAYS[way]
    every: list[str | None] = [*texts(), *MORE]
    r = random.Random(len(every))
    every += ["".join(r.choices(PIECES + MORE, k=r.randint(0, 7))) for _ in range(800)]
    rows = [
        (i, text, None if i % 5 else "2020-02-29 01:02:03", every[-i - 1], f"{i}.25")
        for i, text in enumerate(every)
    ]
    file = tmp_path / "out"
    tmp_path.chmod(0o777)
    legacy = of_family(exporter)
    try:
        legacy.run(
            "CREATE TABLE t (id int, name text, at datetime, more text, n decimal(9,2))"
            " CHARACTER SET utf8mb4"
        )
        legacy.insert("t", rows)
        legacy.run(f"SELECT * FROM t INTO OUTFILE '{file}' CHARACTER SET utf8mb4 {clause}")
    finally:
        legacy.close()
    accounts = Accounts(tmp_path / "read", OUTFILE % (json.dumps(separator), json.dumps(quote)))
    accounts.put(file.read_bytes())
    found = sorted(accounts.read(), key=lambda row: int(row[0] or 0))
    assert found == [[str(i), *others] for i, *others in rows]


def test_escapes_that_other_writers_of_mysqls_form_use(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, OF_TWO)
    accounts.put(b"1\ta\\tb\\nc\\rd\\be\\Zf\\0g\r\n2\t\\N\n3\t\\\\N\n")
    assert accounts.read() == [["1", "a\tb\nc\rd\be\x1af\0g\r"], ["2", None], ["3", "\\N"]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"3\ta\\Nb\n", r"\\N beside other text.*line 4"),
        (b"3\t\\a\n", "in front of b'a'.*line 4"),
        (b'3\t\\"\n', "in front of b'\"'.*line 4"),
        (b"3\t\\", "line 4, has no end"),
        (b"3\ta\tb\n", "3 fields.*line 4"),
        (b"3\n", "1 fields.*line 4"),
        (b"x\ty\n", "line 4"),
    ],
    ids=ascii,
)
def test_what_has_no_one_meaning_is_refused_with_its_line(
    tmp_path: Path, line: bytes, why: str
) -> None:
    accounts = Accounts(tmp_path, OF_TWO)
    accounts.put(b"1\ta\\\nb\\\\\n2\tb\n" + line)
    with pytest.raises(errors.ValueDoesNotFit) as caught:
        accounts.read()
    assert re.search(why, f"{caught.value.message} {caught.value.details}"), caught.value


def test_line_ends_that_may_be_the_last_columns_are_refused(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, OF_TWO)
    accounts.put(b"1\ta\r\n2\tb\r\n")
    with pytest.raises(errors.ValueDoesNotFit, match="carriage return"):
        accounts.read()


def test_a_long_run_of_backslashes_takes_no_longer(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, OF_TWO)
    accounts.put(b"1\t" + b"\\" * 20_000_000 + b"\n2\t" + b"\\\n" * 5_000_000 + b"\n")
    started = time.thread_time()
    assert [len(row[1] or "") for row in accounts.read()] == [10_000_000, 5_000_000]
    assert time.thread_time() - started < 4


def test_outfile_is_refused_where_it_has_escapes(exporter: FamilyServer, tmp_path: Path) -> None:
    """A zero byte, and a line end behind a backslash, are none of COPY's; nothing is guessed."""
    legacy = of_family(exporter)
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

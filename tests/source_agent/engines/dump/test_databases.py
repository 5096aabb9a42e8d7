"""A whole database, dumped by its own program under one marker, is read as its tables hold it."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError, DatabaseUnavailable, ValueDoesNotFit

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import Read, read
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Files, Relation
from tests.harness.legacies import OfMariaDB, OfPostgreSQL
from tests.harness.servers import MariaDB, PostgreSQL, find_program
from tests.source_agent.engines.dump.folders import Accounts
from tests.source_agent.engines.dump.test_copied import COPY, MORE, PIECES

TEXTS = [
    "customers", "SELECT 1;", "-- Dump completed", "/*!40101 SET NAMES utf8 */", "\\N", "NULL", "",
    "\\", "😀", "ſ", "\u2028", "\ufeff", "é" * 300, "'", '"', ";", "C:\\new\\table",
]  # fmt: skip
NUMBERS = ["0", "-0.01", "9999999999999.99", "-9999999999999.99"]
DOUBLES = ["0", "0.1", "1e-307", "1.7976931348623157e308", "5e-324", "123456789.12345679", "1e22"]
TIMES = ["1000-01-01 00:00:00.000001", "2024-02-29 23:59:59.999999", "9999-12-31 00:00:00"]
# A table: columns with the types of a format, and the types of the server.
TABLES: dict[str, dict[str, tuple[str, str, str]]] = {
    "customers": {"id": ("int8", "bigint", "bigint"), "name": ("text", "text", "text"),
                  "more": ("text", "text", "varchar(1000)")},
    "amounts": {"id": ("int8", "bigint", "bigint"),
                "n": ("numeric(15,2)", "numeric(15,2)", "decimal(15,2)"),
                "x": ("float8", "float8", "double")},
    "times": {"id": ("int8", "bigint", "bigint"), "at": ("timestamp", "timestamp", "datetime(6)"),
              "day": ("date", "date", "date"), "code": ("text", "char(3)", "varchar(3)")},
}  # fmt: skip


def rows(table: str, extra: Sequence[str]) -> list[tuple[object, ...]]:
    r = random.Random(table)
    if table == "customers":
        texts = [*TEXTS, *("".join(r.choices(extra, k=r.randint(0, 7))) for _ in range(300))]
        found: list[tuple[object, ...]] = [(text, r.choice([None, *texts])) for text in texts]
    elif table == "amounts":
        found = [(n, x) for n in [None, *NUMBERS] for x in [None, *DOUBLES]]
    else:
        found = [
            (at, at and at[:10], code) for at in [None, *TIMES] for code in [None, "", "a", "abc"]
        ]
    return [(r.randrange(2**40) * 1000 + i - 2**62, *row) for i, row in enumerate(found)]


def made(legacy: Legacy, extra: Sequence[str]) -> dict[str, list[Read]]:
    """Make the tables. Return their rows as the engine of the database reads them."""
    place = 1 if legacy.name == "postgresql" else 2
    found = {}
    for table, columns in TABLES.items():
        typed = ", ".join(f"{name} {types[place]}" for name, types in columns.items())
        legacy.run(f"CREATE TABLE {table} ({typed}, PRIMARY KEY (id))")
        legacy.insert(table, rows(table, extra))
        with closing(legacy.connect().open()) as session:
            found[table] = sorted(read(session, Relation(table, table=table)), key=str)
    return found


def dumped(folder: Path, escape: str, ending: str) -> dict[str, list[Read]]:
    """Return the rows of the files of one delivery, each named as its table."""
    found = {}
    head = COPY.split("[columns]")[0].replace("postgresql", escape)
    with closing(connect(f"dump:///{folder}", None, Limits()).open()) as session:
        for table, columns in TABLES.items():
            file = folder / f"{table}.toml"
            typed = "\n".join(f'{name} = "{types[0]}"' for name, types in columns.items())
            file.write_text(f"{head}[columns]\n{typed}\n")
            files = Files(f"{table}{ending}", file, complete="done")
            relation = Relation(table, key=("id",), files=files)
            found[table] = sorted(read(session, relation), key=str)
    return found


def test_mariadb_dump_of_a_database(mariadb: MariaDB, tmp_path: Path) -> None:
    legacy = OfMariaDB(mariadb)
    folder = tmp_path / "delivery"
    folder.mkdir()
    for place in (tmp_path, folder):
        place.chmod(0o777)  # the server writes it
    try:
        expected = made(legacy, [*PIECES, *MORE])
        program = find_program("mariadb-dump") or find_program("mysqldump") or "mariadb-dump"
        command = [
            program, "--no-defaults", f"--socket={mariadb.socket}", "--user=root",
            "--single-transaction", "--default-character-set=utf8mb4",
            f"--tab={folder}", legacy.database,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "done").touch()
        assert dumped(folder, "mysql", ".txt") == expected
    finally:
        legacy.close()


def test_copies_of_a_database_in_one_transaction(postgresql: PostgreSQL, tmp_path: Path) -> None:
    legacy = OfPostgreSQL(postgresql)
    try:
        expected = made(legacy, [*PIECES, "\x1a", "'", ";"])
        with postgresql.superuser(legacy.database) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for table in TABLES:
                with cursor.copy(f"COPY {table} TO STDOUT") as out:
                    (tmp_path / f"{table}.copy").write_bytes(b"".join(map(bytes, out)))
        (tmp_path / "done").touch()
        assert dumped(tmp_path, "postgresql", ".copy") == expected
    finally:
        legacy.close()


def test_the_formats_of_pg_dump_are_refused(postgresql: PostgreSQL, tmp_path: Path) -> None:
    """A folder's files end with what is no row; a script is none of the formats."""
    if not postgresql.has_tool("pg_dump"):
        pytest.skip("NO PG_DUMP, NOT TESTED: this package has none")
    legacy = OfPostgreSQL(postgresql)
    try:
        legacy.run("CREATE TABLE t (id bigint, name text)", "INSERT INTO t VALUES (1, 'x')")
        where = f"--dbname={postgresql.uri_of(legacy.database)}"
        for number, kind in enumerate((("-Fd", "--compress=0"), ("-Fp",))):
            out = tmp_path / str(number)
            command = [str(postgresql.tool("pg_dump")), where, *kind, f"--file={out}"]
            subprocess.run(command, check=True, capture_output=True, text=True)
            (file,) = out.glob("[0-9]*.dat") if out.is_dir() else (out,)
            accounts = Accounts(tmp_path / f"read{number}", COPY)
            accounts.put(file.read_bytes())
            with pytest.raises(ValueDoesNotFit, match=r"fields|\\"):
                accounts.read()
    finally:
        legacy.close()


@pytest.mark.parametrize(
    ("pattern", "complete", "names"),
    [
        ("a.txt", "done", ("a.txt", "done")),
        ("a-{%Y%m%d}.txt", "dump-{%Y%m%d}.ok", ("a-20240229.txt", "dump-20240229.ok")),
    ],
)
def test_one_marker_for_all_tables(
    tmp_path: Path, pattern: str, complete: str, names: tuple[str, str]
) -> None:
    """It completes no file that is newer, as when the next dump has begun."""
    accounts = Accounts(tmp_path, COPY)
    files = Files(pattern, accounts.format, complete=complete)
    accounts.relation = replace(accounts.relation, files=files)
    file = accounts.put(b"1\tx\n", names[0])
    with pytest.raises(DatabaseUnavailable, match="does not exist"):
        accounts.read()
    marker = accounts.put(b"", names[1])
    assert accounts.read() == [["1", "x"]]
    marked = marker.stat().st_mtime_ns
    os.utime(file, ns=(marked + 1, marked + 1))
    with pytest.raises(DatabaseUnavailable, match="older than the file"):
        accounts.read()


@pytest.mark.parametrize(
    ("pattern", "complete"), [("a-*.txt", "done"), ("a-{%Y%m%d}.txt", "done"), ("a.txt", "a.txt")]
)
def test_a_marker_that_would_complete_others_is_refused(
    tmp_path: Path, pattern: str, complete: str
) -> None:
    accounts = Accounts(tmp_path, COPY)
    files = Files(pattern, accounts.format, complete=complete)
    accounts.relation = replace(accounts.relation, files=files)
    with pytest.raises(ConfigurationError, match="marker of each file"):
        accounts.read()


def test_a_marker_is_never_read_as_what_it_completes(tmp_path: Path) -> None:
    """A pattern that its own marker matches: an empty table was read from the marker."""
    accounts = Accounts(tmp_path, pattern="a-{%Y%m%d}*")
    files = Files("a-{%Y%m%d}*", accounts.format, complete="a-{%Y%m%d}.done")
    accounts.relation = replace(accounts.relation, files=files)
    accounts.put(b"id,name,balance\n1,x,2.50\n", "a-20240101.csv")
    for day in ("20240101", "20240102"):
        accounts.put(b"id,name,balance\n", f"a-{day}.done")
    assert [row[0] for row in accounts.read()] == ["1"]

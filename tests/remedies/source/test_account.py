"""Remedies for an account that may not read a file: with what each says, it is read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline.errors import DriftlineError

from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.nobody import as_nobody, only_root, open_folder
from tests.remedies.told import told
from tests.source_agent.engines.dump.folders import Accounts

pytestmark = only_root
_APPLICATION = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL)")
connection.commit()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


def columns(file: Path) -> int:
    with closing(connect(f"sqlite:///{file}", None, Limits()).open()) as session:
        return len(session.describe(Relation("t", table="t")).recipe.columns)


def test_a_file_of_sqlite_that_may_not_be_read(folder: Path) -> None:
    file = folder / "erp.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL)")
    file.chmod(0o600)
    with as_nobody(), pytest.raises(DriftlineError) as caught:
        columns(file)
    told(caught.value, "The agent must be able to read the file and, in WAL mode, -wal and -shm.")
    file.chmod(0o644)
    with as_nobody():
        assert columns(file) == 1


@pytest.mark.starts
def test_a_writer_that_ended_without_closing_the_file(folder: Path) -> None:
    """While it wrote the index of -wal, which is damaged here, and another has the file open."""
    file = folder / "erp.db"
    words = [sys.executable, "-c", _APPLICATION, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as application:
        assert application.stdin
        assert application.stdout
        assert application.stdout.readline() == b"open\n"
        with Path(f"{file}-shm").open("r+b") as index:
            index.write(bytes(96))
        with as_nobody(), pytest.raises(DriftlineError) as caught:
            columns(file)
        told(
            caught.value,
            "Start the application, or open the file with the sqlite3 shell as its owner and read a"
            " table: that recovers it. The agent's account may not write and cannot.",
        )
        with closing(sqlite3.connect(file)) as owner:
            assert owner.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with as_nobody():
            assert columns(file) == 1
        application.stdin.close()


def test_a_dump_that_may_not_be_read(folder: Path) -> None:
    accounts = Accounts(folder / "dumps", '[columns]\nid = "int8"\n')
    accounts.put(b"id\n1\n").chmod(0o600)
    with as_nobody(), pytest.raises(DriftlineError) as caught:
        accounts.read()
    told(caught.value, "The agent's account must be able to read the files that `files` names.")
    (accounts.folder / "a-1.csv").chmod(0o644)
    with as_nobody():
        assert accounts.read() == [["1"]]

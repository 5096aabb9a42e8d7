"""Remedies for a relation of an SQLite database: with what each says, its rows are read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from driftline.errors import DatabaseRefused, DatabaseUnavailable, DriftlineError

from source_agent.engines.conformance.reads import Read, rows_of
from source_agent.engines.encoding import rows
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Fingerprint, Relation
from tests.remedies.told import told

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT, changed INT, at TIMESTAMP);
CREATE TABLE loose (a INT NOT NULL, b INT NOT NULL);
INSERT INTO orders VALUES (1, 'one', 7, '2026-01-01 00:00:00'), (2, x'ff', 8, NULL);
INSERT INTO loose VALUES (1, 1), (1, 2);
"""
ORDERS = Relation("orders", table="orders", columns=("id", "note", "changed"), where="id = 1")
TIMED = replace(ORDERS, columns=None)
READ = 'Name columns that identify a row: key = ["…"].'
CORRECT = "Correct the table or the query in the file."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.executescript(TABLES)
    return tmp_path / "erp.db"


def read(file: Path, relation: Relation) -> list[Read]:
    with closing(connect(f"sqlite:///{file}", None, Limits(lock_s=0.05)).open()) as session:
        return rows_of(session, session.describe(relation))


CASES: list[tuple[str, Relation, tuple[Relation, ...]]] = [
    ("Did you mean …?", replace(ORDERS, table="order"), (ORDERS,)),
    (
        "There are: …….",
        replace(ORDERS, table="zzz"),
        (ORDERS, replace(ORDERS, table="loose", columns=None, key=("b",), where=None)),
    ),
    ("Write the table's name alone.", replace(ORDERS, table="erp.orders"), (ORDERS,)),
    ("Did you mean …?", replace(ORDERS, columns=("id", "nota")), (ORDERS,)),
    (READ, Relation("l", table="loose"), (Relation("l", table="loose", key=("a", "b")),)),
    (
        "Give each its own name with AS.",
        Relation("q", query="SELECT a, a FROM loose", key=("a",)),
        (Relation("q", query="SELECT b AS a, a AS b FROM loose", key=("a",)),),
    ),
    (
        "docs/types.md lists them, such as int8, text or numeric(15,2).",
        replace(ORDERS, types=(("changed", "integer"),)),
        (replace(ORDERS, types=(("changed", "int8"),)),),
    ),
    (
        'Remove `fingerprint = "database"`; the agent makes fingerprints everywhere.',
        replace(ORDERS, fingerprint=Fingerprint.DATABASE),
        (ORDERS,),
    ),
    (
        "Set as_text = […] in source.toml, or publish a query that casts ….",
        replace(ORDERS, where=None),
        (
            replace(ORDERS, where=None, as_text=("note",)),
            Relation(
                "q",
                query="SELECT id, hex(note) AS note FROM orders",
                key=("id",),
                types=(("id", "int8"), ("note", "text")),
            ),
        ),
    ),
    (
        "Remove it, and say in `where` which rows count.",
        replace(ORDERS, marker=Marker("changed", deleted="note")),
        (replace(ORDERS, marker=Marker("changed")),),
    ),
    (
        "Name a `column`, or remove `marker`.",
        replace(ORDERS, marker=Marker("")),
        (replace(ORDERS, marker=Marker("changed")), ORDERS),
    ),
    (
        "Name a column of dates, times or integers, or remove `marker`.",
        replace(ORDERS, marker=Marker("note")),
        (replace(ORDERS, marker=Marker("changed")), ORDERS),
    ),
    (
        "Remove it.",
        replace(ORDERS, marker=Marker("changed", late_s=9.0)),
        (replace(ORDERS, marker=Marker("changed")),),
    ),
    (
        'Write how long a transaction may last at most, such as late = "15m".',
        replace(TIMED, marker=Marker("at", zone="UTC")),
        (replace(TIMED, marker=Marker("at", late_s=900.0, zone="UTC")),),
    ),
    (
        'Write the zone of those who set them, such as zone = "UTC".',
        replace(TIMED, marker=Marker("at", late_s=900.0)),
        (replace(TIMED, marker=Marker("at", late_s=900.0, zone="UTC")),),
    ),
    (
        "Add it to `columns`, or remove `marker`.",
        replace(ORDERS, columns=("id", "note"), marker=Marker("changed", checksum=True)),
        (
            replace(ORDERS, marker=Marker("changed", checksum=True)),
            replace(ORDERS, columns=("id", "note")),
        ),
    ),
    (CORRECT, replace(ORDERS, where="no_column = 1"), (ORDERS,)),
    (
        "A relation may only read tables of the file itself.",
        Relation(
            "q",
            query="SELECT rowid AS id FROM temp.sqlite_master",
            key=("id",),
            types=(("id", "int8"),),
        ),
        (Relation("q", query="SELECT id FROM orders", key=("id",), types=(("id", "int8"),)),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:40])
def test_the_relation_is_read(file: Path, case: tuple[str, Relation, tuple[Relation, ...]]) -> None:
    remedy, fault, mended = case
    with pytest.raises(DriftlineError) as caught:
        read(file, fault)
    told(caught.value, remedy)
    for relation in mended:
        assert read(file, relation)


def test_more_slashes_than_a_path_needs(file: Path) -> None:
    """As of somebody who follows the remedy for an absolute path, and has its slash already."""
    for slashes in ("//", "///", "////", "/////"):
        url = f"sqlite:{slashes}/{file}"
        with closing(connect(url, None, Limits()).open()) as session:
            assert rows_of(session, session.describe(ORDERS)), url


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        read(file.with_name("erb.db"), ORDERS)
    told(
        caught.value,
        "Check database.url: an absolute path has four slashes, sqlite:////path/to/file.",
    )
    assert read(file, ORDERS)


def test_a_writer_that_holds_the_file(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable) as caught:
            read(file, ORDERS)
        told(caught.value, "A writer holds it; try again, or raise lock_timeout_s.")
    assert read(file, ORDERS)


def test_a_read_that_takes_too_long(file: Path) -> None:
    slow = replace(
        ORDERS, table=None, key=("id",), where=None, types=(("id", "int8"),),
        columns=None, query="WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n"
        " LIMIT 300000) SELECT max(id) AS id FROM n",
    )  # fmt: skip

    def within(seconds: float | None, relation: Relation) -> list[Read]:
        limits = Limits(statement_s=seconds)
        with closing(connect(f"sqlite:///{file}", None, limits).open()) as session:
            return rows_of(session, session.describe(relation))

    with pytest.raises(DatabaseRefused) as caught:
        within(0.001, slow)
    told(caught.value, "Raise `statement_timeout_s`, or publish less of the table.")
    assert within(60, slow)
    assert slow.query is not None
    assert within(60, replace(slow, query=slow.query.replace("300000", "3")))


def test_a_row_that_is_too_large(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is made small, not the row large."""
    from source_agent.engines.encoding import rows

    monkeypatch.setattr(rows, "ROW_BYTES_MAX", 30)
    with pytest.raises(DriftlineError) as caught:
        read(file, replace(ORDERS, columns=None))
    told(caught.value, "Leave its largest column out with `columns`, or the row with `where`.")
    assert read(file, replace(ORDERS, columns=("id",)))
    assert read(file, replace(ORDERS, columns=("id", "changed"), where="id = 2"))


def test_a_file_that_is_none(file: Path) -> None:
    good = file.read_bytes()
    file.write_bytes(b"not a database of SQLite, by far" * 99)
    with pytest.raises(DatabaseRefused) as caught:
        read(file, ORDERS)
    told(caught.value, "Run PRAGMA integrity_check on it.")
    with closing(sqlite3.connect(file)) as shell, pytest.raises(sqlite3.DatabaseError):
        shell.execute("PRAGMA integrity_check").fetchall()  # it says so: restore a backup
    file.write_bytes(good)
    assert read(file, ORDERS)


def test_rows_that_come_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a key that is not unique, where rows are copied before the first of them is sent."""
    monkeypatch.setattr(rows, "BATCH_ROWS", 10)
    file = tmp_path / "many.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (id INT NOT NULL)")
        connection.execute(
            "WITH RECURSIVE i(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM i WHERE x < 4000)"
            " INSERT INTO t SELECT 7 FROM i"
        )
        connection.commit()
        relation = Relation("t", query="SELECT id FROM t", key=("id",))
        with closing(connect(f"sqlite:///{file}", None, Limits()).open()) as session:
            with pytest.raises(DatabaseRefused) as caught:
                rows_of(session, session.describe(relation))
            told(
                caught.value,
                "Ask the DBA to check the table and its indexes at the source (SQLite: PRAGMA"
                " integrity_check; MariaDB: CHECK TABLE; PostgreSQL: amcheck), and that the key is"
                " unique.",
            )
        connection.execute("DELETE FROM t WHERE rowid > 1")
        connection.commit()
    with closing(connect(f"sqlite:///{file}", None, Limits()).open()) as session:
        assert rows_of(session, session.describe(relation)) == [["7"]]

"""What SQLite alone promises or refuses; the rest is in the conformance suite."""

from __future__ import annotations

import itertools
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from driftline import errors

from source_agent.engines.conformance.reads import (
    ALL_KEYS,
    decoded,
    filled,
    flat,
    multiset,
    read,
    session_of,
)
from source_agent.engines.conformance.test_locators import located_scan, read_at
from source_agent.engines.encoding import rows
from source_agent.engines.interface import BATCH_ROWS, Unlocated
from source_agent.engines.relations.shapes import Consistency, Relation
from source_agent.engines.sqlite import session as sqlite_session
from tests.harness.legacies import OfSQLite


@pytest.fixture
def lite(tmp_path: Path) -> OfSQLite:
    return OfSQLite(tmp_path / "legacy.sqlite")


def test_snapshots_cover_tables_too(lite: OfSQLite) -> None:
    expected = filled(lite, 100)
    lite.run("CREATE TABLE staged AS SELECT * FROM items WHERE id < 9")
    with session_of(lite) as session:
        session.describe(Relation("s", table="staged", key=("id",)))  # the snapshot is taken
        lite.run("DROP TABLE items", "ALTER TABLE staged RENAME TO items")
        assert multiset(read(session, Relation("items", table="items"))) == multiset(expected)
    with session_of(lite) as session:
        assert len(read(session, Relation("items", table="items", key=("id",)))) == 3


def test_without_wal_a_later_snapshot_has_a_later_time(tmp_path: Path) -> None:
    """A relation behind another in a stream is not as of the snapshot of that one."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    filled(lite, 10)
    items = Relation("items", table="items")
    with session_of(lite) as session:
        before = session.snapshot.as_of
        assert len(read(session, items)) == 10
        session.pause()
        time.sleep(0.005)  # SQLite's clock has milliseconds
        lite.run("DELETE FROM items")
        assert read(session, items) == []
        assert session.snapshot.generation == 1
        assert session.snapshot.as_of > before


def test_without_wal_lets_writers_in_while_paused(tmp_path: Path) -> None:
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    expected = filled(lite, BATCH_ROWS * 2)
    for how in ("table", "query"):
        relation = Relation("items", table="items")
        if how == "query":
            relation = Relation("items", query="SELECT id, label FROM items", key=("id",))
        with session_of(lite) as session:
            shape = session.describe(relation)
            batches = session.scan(shape)
            rows = next(batches)
            session.pause()
            lite.run("UPDATE items SET name = name || 1 WHERE id = 3")
            rows += flat(batches)
            assert len(rows) == len(expected)
            flat(session.scan(shape, ordered=True))
            assert session.snapshot.generation == 1
            assert session.snapshot.consistency is Consistency.FUZZY
            bounds = np.array([0], np.int64), np.array([2**40], np.int64)
            for batch in session.read_ranges(shape, *bounds):
                assert batch
                session.pause()
                lite.run("UPDATE items SET name = name || 1 WHERE id = 3")


PAGED = (
    # definition, key, published columns, columns that are selected for the position alone
    ("(k INTEGER PRIMARY KEY, v TEXT, w INT)", (), None, 0),
    ("(k INTEGER PRIMARY KEY, v TEXT, w INT)", ("w",), None, 0),
    ("(k INTEGER PRIMARY KEY, v TEXT, w INT)", ("w",), ("w", "v"), 1),
    ("(k INT, v TEXT, w INT)", ("w",), None, 1),
    ("(k INT, v TEXT, w INT, PRIMARY KEY (v, k)) WITHOUT ROWID", (), None, 0),
    ("(k INT, v TEXT, w INT, PRIMARY KEY (v, k)) WITHOUT ROWID", ("w",), ("w", "k"), 1),
)


@pytest.mark.parametrize(("definition", "key", "columns", "extra"), PAGED)
def test_pages_hold_every_row_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    definition: str,
    key: tuple[str, ...],
    columns: tuple[str, ...] | None,
    extra: int,
) -> None:
    monkeypatch.setattr(sqlite_session, "PAGE_ROWS", 7)
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    lite.run(f"CREATE TABLE t {definition}")
    lite.insert("t", [(i * 3, f"v{i % 5}", 1000 - i) for i in range(100)])
    relation = Relation("t", table="t", key=key, columns=columns)
    query = Relation("q", query="SELECT * FROM t", key=key or ("k",), columns=columns)
    issued: list[str] = []
    lite.record(monkeypatch, issued)
    with session_of(lite) as session:
        shape = session.describe(relation)
        rows = read(session, relation)
        names = [column.name for column in shape.recipe.columns]
        found = session.describe(query)
        expected = [
            dict(zip((c.name for c in found.recipe.columns), row, strict=True))
            for row in read(session, query)
        ]
    assert len(rows) == 100
    assert multiset(rows) == multiset([[row[name] for name in names] for row in expected])
    pages = [sql for sql in issued if "LIMIT ?" in sql]
    assert len(pages) > 10
    selected = [sql.split("\nFROM")[0].removeprefix("SELECT ").split(", ") for sql in pages]
    assert {len(expressions) for expressions in selected} == {len(names) + extra}


TABLES = {
    "rowid": ("(a TEXT NOT NULL, v INT, PRIMARY KEY (a))", ""),
    "alias": ("(a TEXT NOT NULL UNIQUE, v INTEGER PRIMARY KEY)", ""),
    "column rowid": ("(a TEXT NOT NULL UNIQUE, rowid INT, v INT)", ""),
    "no name left": ("(a TEXT NOT NULL UNIQUE, rowid INT, _rowid_ INT, oid INT)", "taken the name"),
    "without rowid": ("(a TEXT NOT NULL PRIMARY KEY, v INT) WITHOUT ROWID", "WITHOUT ROWID"),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_rows_are_read_by_their_rowids(tmp_path: Path, kind: str, journal: str) -> None:
    """Also by negative ones, and behind columns that a page is read for; or it is said why not."""
    lite = OfSQLite(tmp_path / "file.sqlite", journal=journal)
    definition, why = TABLES[kind]
    lite.run(f"CREATE TABLE t {definition}", "CREATE VIEW seen AS SELECT * FROM t")
    places = ("v", "a") if kind == "alias" else ("a",)
    rows = [(-n, f"k{n}") if kind == "alias" else (f"k{n}",) for n in range(3000)]
    marks = ", ".join("?" * len(places))
    with closing(sqlite3.connect(tmp_path / "file.sqlite")) as connection, connection:
        connection.executemany(f"INSERT INTO t ({', '.join(places)}) VALUES ({marks})", rows)
    with session_of(lite) as session:
        able = session.capabilities.locators
        shape = session.describe(Relation("t", table="t", key=("a",), columns=("a",)))
        located = able.locate(shape)
        if why:
            assert isinstance(located, Unlocated)
            assert why in located.why
            return
        found, at = located_scan(session, located)
        session.pause()
        assert sorted(found) == sorted(flat(session.scan(shape)))
        assert sorted(read_at(able, located, at[::7])) == sorted(found[::7])
        seen = able.locate(session.describe(Relation("s", table="seen", key=("a",))))
        assert isinstance(seen, Unlocated)
        assert "view" in seen.why


def test_a_key_that_may_be_null_orders_no_pages(tmp_path: Path) -> None:
    """The page after a NULL would be empty. The table's columns hide every name of its rowid."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    lite.run("CREATE TABLE t (rowid INT, oid INT, _rowid_ INT, k TEXT PRIMARY KEY)")
    lite.insert("t", [(i, i, i, None if i < 30 else f"k{i}") for i in range(60)])
    with session_of(lite) as session:
        assert len(read(session, Relation("t", table="t", key=("oid",)))) == 60


def test_a_stored_key_that_is_not_utf8(tmp_path: Path) -> None:
    """It cannot be bound, so no page begins behind it."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    lite.run(
        "CREATE TABLE t (k TEXT NOT NULL PRIMARY KEY, v INT) WITHOUT ROWID",
        "INSERT INTO t VALUES ('a', 1), (CAST(x'c328' AS TEXT), 2)",
    )
    with session_of(lite) as session:
        found = read(session, Relation("t", table="t", as_text=("k",)))
        assert sorted(map(str, found)) == ["['t:a', '1']", "['x:c328', '2']"]
        with pytest.raises(errors.ValueDoesNotFit, match="k"):
            read(session, Relation("t", table="t"))


@pytest.mark.parametrize("how", ["query", "ranges", "ranges of at most two rows"])
def test_without_wal_lets_go_of_what_is_copied(tmp_path: Path, how: str) -> None:
    """What is in the temporary file needs no lock, though nobody has paused the session."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    expected = filled(lite, BATCH_ROWS * 2)
    relation = Relation("items", query="SELECT id, label FROM items", key=("id",))
    with session_of(lite) as session:
        if how == "query":
            batches = session.scan(session.describe(relation))
        else:
            shape = session.describe(Relation("items", table="items"))
            batches = session.read_ranges(shape, *ALL_KEYS, rows_max=None if how == "ranges" else 1)
        rows = next(batches)
        lite.run("UPDATE items SET name = name || 1 WHERE id = 3")
        rows += flat(batches)
        assert len(rows) == (2 if "two" in how else len(expected))
        assert session.snapshot.consistency.value == "exact", "one statement read it all"
        session.describe(relation)
        assert session.snapshot.consistency is Consistency.FUZZY


def test_a_copy_that_would_never_end_is_refused(tmp_path: Path) -> None:
    """Rows that come again and again are noticed while they are copied, before the first batch."""
    lite = OfSQLite(tmp_path / "rollback.sqlite", journal="delete")
    filled(lite, 5 * BATCH_ROWS // 2)
    with session_of(lite) as session:
        shape = session.describe(Relation("items", table="items"))
        every = list(session.scan(shape))
        endless = itertools.islice(itertools.cycle(every), 100_000)
        with pytest.raises(errors.DatabaseRefused, match=r"key id=\d+ in more than 100 batches"):
            next(rows.spooled(endless, shape))
        assert list(rows.spooled(iter(every * 50), shape)) == every * 50


@pytest.mark.parametrize("journal", ["wal", "delete"])
@pytest.mark.parametrize(
    "key", ["A17", "", b"", b"\xff\xff", 7.5, -1e300, 1e300, math.inf, -math.inf]
)
def test_ranges_leave_no_gap(tmp_path: Path, key: object, journal: str) -> None:
    """A column that is declared INT holds whatever it is given; a scan refuses that, and so do
    ranges that cover every integer."""
    lite = OfSQLite(tmp_path / "loose.sqlite", journal=journal)
    lite.run("CREATE TABLE loose (id INT PRIMARY KEY, n INT)")
    lite.insert("loose", [(k, 5) for k in (-(2**63), 0, 7, 8, 2**63 - 1)])
    with session_of(lite) as session:
        shape = session.describe(Relation("loose", table="loose"))
        assert len(flat(session.read_ranges(shape, *ALL_KEYS))) == 5
        assert len(flat(session.read_ranges(shape, ALL_KEYS[0][:1], ALL_KEYS[1][1:]))) == 5
    lite.insert("loose", [(key, 5)])
    with session_of(lite) as session:
        for read_all in (session.scan, lambda shape: session.read_ranges(shape, *ALL_KEYS)):
            with pytest.raises(errors.ValueDoesNotFit):
                flat(read_all(session.describe(Relation("loose", table="loose"))))


def test_lets_go_of_a_read_that_failed(tmp_path: Path) -> None:
    """Also while the error, and with it the frames that it came through, is still alive."""
    lite = OfSQLite(tmp_path / "loose.sqlite", journal="delete")
    lite.run("CREATE TABLE loose (id INT PRIMARY KEY, n INT)")
    lite.insert("loose", [(k, 5) for k in (-1e300, *range(5000))])
    with pytest.raises(errors.ValueDoesNotFit) as caught, session_of(lite) as session:
        flat(session.read_ranges(session.describe(Relation("loose", table="loose")), *ALL_KEYS))
    lite.run("DELETE FROM loose WHERE id = 7")
    assert caught.value.details["key"] == "-1e+300"


def test_a_key_that_is_unique_in_some_rows_is_not_vouched(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE t (k integer NOT NULL, live int)",
        "CREATE UNIQUE INDEX living ON t (k) WHERE live",
        "INSERT INTO t VALUES (1, 0), (1, 0), (1, 1)",
    )
    with session_of(lite) as session:
        assert not session.describe(Relation("t", table="t", key=("k",))).vouched
    lite.run("DELETE FROM t WHERE NOT live", "CREATE UNIQUE INDEX every ON t (k)")
    with session_of(lite) as session:
        assert session.describe(Relation("t", table="t", key=("k",))).vouched


def test_keys_that_may_be_null_are_not_vouched(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE a (k text PRIMARY KEY, v)",
        "CREATE TABLE b (k text PRIMARY KEY, v) WITHOUT ROWID",
        "CREATE TABLE c (k integer PRIMARY KEY, v generated always as (k + 1))",
        "CREATE TABLE d (k integer PRIMARY KEY DESC, v)",
        "CREATE TABLE e (rowid text, oid text, _rowid_ text, k integer PRIMARY KEY)",
        "INSERT INTO a VALUES (NULL, 1), (NULL, 2)",
        "INSERT INTO b VALUES ('x', 1)",
        "INSERT INTO c VALUES (1)",
        "INSERT INTO d VALUES (NULL, 1)",
        "INSERT INTO e VALUES ('a', 'b', 'c', 7)",
    )
    with session_of(lite) as session:
        shapes = {t: session.describe(Relation(t, table=t)) for t in "abcde"}
        rows = {t: [decoded(r, s) for r in flat(session.scan(s))] for t, s in shapes.items()}
    assert [t for t, s in shapes.items() if s.vouched] == ["b", "c"]
    assert rows["a"] == [[None, "i:1"], [None, "i:2"]]
    assert rows["c"] == [["1", "i:2"]]
    assert rows["e"] == [["7", "a", "b", "c"]]


def test_types_of_the_file(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE t (id integer PRIMARY KEY, a, b, c, d, e)",
        "INSERT INTO t VALUES (1, 5, '2020-01-01', 1, 0.5, 'ab')",
    )
    types = (
        ("a", "int2"),
        ("b", "date"),
        ("c", "bool"),
        ("d", "float4"),
        ("e", "text"),
    )
    with session_of(lite) as session:
        relation = Relation("t", table="t", types=types)
        assert read(session, relation) == [["1", "5", "2020-01-01", "true", "0.5", "ab"]]
        for column, value in (("a", "40000"), ("b", "'x'"), ("c", "2"), ("d", "0.1"), ("e", "1")):
            lite.run(f"UPDATE t SET {column} = {value}")
            with session_of(lite) as later, pytest.raises(errors.ValueDoesNotFit, match=column):
                read(later, relation)
            lite.run("DELETE FROM t", "INSERT INTO t VALUES (1, 5, '2020-01-01', 1, 0.5, 'ab')")
        with pytest.raises(errors.ConfigurationError, match="integer"):
            session.describe(Relation("t", table="t", types=(("a", "integer"),)))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, load_extension('x') AS v FROM t",
        "SELECT name AS k FROM temp.sqlite_master",
        "SELECT k, (SELECT 1 FROM other.t) AS v FROM t",
    ],
)
def test_reads_its_file_and_nothing_else(lite: OfSQLite, query: str) -> None:
    lite.run("CREATE TABLE t (k integer PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with (
        session_of(lite) as session,
        pytest.raises((errors.DatabaseRefused, errors.ConfigurationError)),
    ):
        read(session, Relation("q", query=query, key=("k",)))


_HOT = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.executemany("INSERT INTO t (x) VALUES (?)", [("y" * 500,)] * 500)
os._exit(0)
"""
_READ = """
import os, sys
from pathlib import Path
from driftline.errors import DriftlineError
from source_agent.engines.interface import Limits
from source_agent.engines.sqlite.engine import SqliteEngine
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
engine = SqliteEngine(sys.argv[1], Limits())
for right in engine.privileges([]) if sys.argv[2:] else ():
    print("EXCESS" if right.excess else "note" if right.is_note else "needed", right.what)
try:
    engine.open().close()
    print("read")
except DriftlineError as error:
    print(error.code, error.message, error.remedy)
"""


@pytest.mark.starts
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an account without rights")
def test_a_reader_that_may_not_write_is_told_what_the_file_needs() -> None:
    with tempfile.TemporaryDirectory() as made:  # below folders that others may enter
        folder = Path(made)
        folder.chmod(0o755)
        _told_what_the_file_needs(folder)


def _told_what_the_file_needs(folder: Path) -> None:
    def read(path: Path, *more: str) -> str:
        command = [sys.executable, "-c", _READ, str(path), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    wal, hot = folder / "wal.db", folder / "hot.db"
    with sqlite3.connect(hot) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
    connection.close()
    writer = sqlite3.connect(wal)
    writer.executescript("PRAGMA journal_mode = wal; CREATE TABLE t (id INTEGER PRIMARY KEY)")
    assert read(wal) == "read"  # a writer has it open
    writer.close()
    at_rest = read(wal)
    assert at_rest.startswith("DATABASE_REFUSED The file is in WAL mode")
    assert "write to the folder" in at_rest
    folder.chmod(0o777)
    assert read(wal) == "read"  # it may make -wal and -shm
    told = read(wal, "privileges")
    assert f"note create and replace files in {folder}: a reader needs it in WAL mode" in told
    assert "EXCESS" not in told
    with sqlite3.connect(wal) as writer:
        writer.execute("CREATE TABLE u (id INTEGER PRIMARY KEY)")
        for name in ("wal", "shm"):
            Path(f"{wal}-{name}").chmod(0o666)
        told = read(wal, "privileges")
        assert f"needed write {wal}-shm\nnote write {wal}-wal: " in told
        wal.chmod(0o666)
        assert f"EXCESS write {wal}\n" in read(wal, "privileges")
    writer.close()
    assert f"EXCESS create and replace files in {folder}\n" in read(hot, "privileges")
    folder.chmod(0o755)
    subprocess.run([sys.executable, "-c", _HOT, str(hot)], check=True)
    assert "must be rolled back" in read(hot)
    with sqlite3.connect(hot) as connection:  # the remedy
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()
    assert read(hot) == "read"


def test_not_null_is_what_sqlite_enforces(lite: OfSQLite) -> None:
    """Only an INTEGER PRIMARY KEY and one WITHOUT ROWID keep NULLs out without saying so."""
    lite.run(
        "CREATE TABLE alias (id INTEGER PRIMARY KEY, v INT NOT NULL, w INT)",
        "CREATE TABLE odd (id TEXT PRIMARY KEY, v INT NOT NULL, w INT)",
        "CREATE TABLE bare (id TEXT PRIMARY KEY, v INT NOT NULL, w INT) WITHOUT ROWID",
        "CREATE VIEW seen AS SELECT * FROM alias",
    )
    found = {}
    with session_of(lite) as session:
        for table in ("alias", "odd", "bare", "seen"):
            columns = session.describe(Relation(table, table=table, key=("id",))).recipe.columns
            found[table] = {column.name for column in columns if not column.nullable}
    assert found == {"alias": {"id", "v"}, "odd": {"v"}, "bare": {"id", "v"}, "seen": set()}


def test_the_note_of_a_tagged_column_names_a_type_that_it_may_be(lite: OfSQLite) -> None:
    lite.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, total NUMERIC, price DECIMAL, free)",
        "INSERT INTO t VALUES (1, 281.24, 357, 'x')",
    )
    with session_of(lite) as session:
        said = session.describe(Relation("t", table="t")).notes
    notes = dict(note.split(": ", 1) for note in said)
    assert [*notes] == ["total", "price", "free"]
    assert '(types = {"total" = "numeric(15,2)"})' in notes["total"]
    assert '(types = {"price" = "numeric(15,2)"})' in notes["price"]
    assert '(types = {"free" = "int8"})' in notes["free"]
    types = (("total", "numeric(15,2)"), ("price", "numeric(15,2)"), ("free", "text"))
    with session_of(lite) as session:
        assert len(read(session, Relation("t", table="t", types=types))) == 1

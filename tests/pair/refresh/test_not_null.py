"""NOT NULL of published columns: declared where no row has NULL, and not from the first NULL on.

What a table declares is read by delta-rs; every version is read by it, and by DataFusion, which
leaves out `IS NULL` where it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from tests.harness.legacy import Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.older_tables import declaring_bookkeeping, keeping_declarations
from tests.harness.pair import Pair, expect_equal, legacy_of, rows_of
from tests.harness.places import Table, parquet
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion

ROWS = 300
COLUMNS = ("id", "note", "n", "more")
TABLE = "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, note {0}, n {1}, more {2})"
TIGHT = ("VARCHAR(9) NOT NULL", "DOUBLE PRECISION NOT NULL", "INT")
ACCEPT = Options(accept_schema=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = legacy_of(request, tmp_path)
    made.execute(TABLE.format(*TIGHT))
    fill(made, 0, ROWS)
    yield made
    made.close()


@pytest.fixture
def pair(legacy: Legacy, tmp_path: Path) -> Iterator[Pair]:
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        made.small_bytes = 32 << 20
        made.fragment_lines["t"] = 'method = "sketch"'
        yield made


def fill(legacy: Legacy, first: int, rows: int) -> None:
    values = [(i, f"note {i % 9}", i / 7, None if i % 5 else i) for i in range(first, first + rows)]
    legacy.many("INSERT INTO t VALUES (?, ?, ?, ?)", values)


def alter(pair: Pair, column: str, *, is_nullable: bool) -> None:
    """Let a column hold NULL, or not; SQLite makes a table anew for it."""
    if pair.legacy.engine == "postgresql":
        pair.legacy.execute(
            f"ALTER TABLE t ALTER {column} {'DROP' if is_nullable else 'SET'} NOT NULL"
        )
        return
    types = dict(zip(COLUMNS[1:], TIGHT, strict=True))
    types[column] = types[column].removesuffix(" NOT NULL") + ("" if is_nullable else " NOT NULL")
    for statement in (
        "CREATE TABLE aside AS SELECT * FROM t",
        "DROP TABLE t",
        TABLE.format(*types.values()),
        "INSERT INTO t SELECT * FROM aside",
        "DROP TABLE aside",
    ):
        pair.legacy.execute(statement)


def table(pair: Pair, version: int | None = None) -> Table:
    return pair.delta("t", version)


def not_null(pair: Pair, version: int | None = None) -> set[str]:
    return {field.name for field in table(pair, version).schema().fields if not field.nullable}


def check(pair: Pair) -> None:
    """Other readers find every row of the source, and those with NULL where they look for it."""
    found, rows = table(pair), pair.legacy.rows("t")
    expect_equal(rows_of(found.to_pyarrow_table()), rows)
    for place, column in enumerate(COLUMNS):
        query = f"SELECT * FROM t WHERE {column} IS NULL"
        result = QueryBuilder().register("t", found).execute(query)
        expect_equal(rows_of(pa.table(result.read_all())), [r for r in rows if r[place] is None])
    for file in found.file_uris():  # nothing of this is in the files
        footer = parquet(pair.place(file)).schema_arrow
        assert all(field.nullable for field in footer)


def test_a_first_load_declares_what_the_source_enforces(pair: Pair) -> None:
    assert pair.refresh("t").version == 0
    assert not_null(pair) == {"id", "note", "n"}
    protocol = table(pair).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2), "no feature more"
    check(pair)
    fill(pair.legacy, ROWS, 10)
    assert pair.refresh("t").version == 1
    assert not_null(pair) == {"id", "note", "n"}
    log = pair.root / "t" / "_delta_log" / f"{1:020d}.json"
    assert '"metaData"' not in log.read_text()
    check(pair)


@pytest.mark.parametrize("column", ["note", "n"])
@pytest.mark.parametrize("how", ["update", "insert"])
def test_the_version_with_the_first_null_is_loosened(pair: Pair, column: str, how: str) -> None:
    pair.refresh("t")
    files = set(table(pair).file_uris())
    alter(pair, column, is_nullable=True)
    assert pair.refresh("t").version == 0, "a declaration is no row"
    if how == "update":
        pair.legacy.execute(f"UPDATE t SET {column} = NULL WHERE id = 7")
    else:
        value = "1.5" if column == "note" else "'note'"
        other = "n" if column == "note" else "note"
        pair.legacy.execute(f"INSERT INTO t (id, {other}) VALUES ({ROWS}, {value})")
    report = pair.refresh("t")
    assert (report.version, report.error) == (1, None)
    loose = {"id", "note", "n"} - {column}
    assert (not_null(pair), not_null(pair, 0)) == (loose, {"id", "note", "n"})
    assert (files <= set(table(pair).file_uris())) == (how == "insert")
    check(pair)
    pair.check_feed("t", 1)
    value = "1" if column == "n" else "'x'"
    pair.legacy.execute(f"UPDATE t SET {column} = {value} WHERE {column} IS NULL")
    assert pair.refresh("t").version == 2
    assert not_null(pair) == loose, "once loosened, it stays so"
    check(pair)


def test_a_column_is_declared_again_when_the_source_is_described(pair: Pair) -> None:
    pair.refresh("t")
    alter(pair, "note", is_nullable=True)
    pair.legacy.execute("UPDATE t SET note = NULL WHERE id < 9")
    pair.refresh("t")
    pair.legacy.execute("UPDATE t SET note = 'x' WHERE note IS NULL")
    alter(pair, "note", is_nullable=False)
    assert pair.refresh("t").version == 2
    assert not_null(pair) == {"id", "n"}
    (report,) = pair.reports("t", options=ACCEPT)
    assert (report.version, report.error, report.rows_updated) == (3, None, 0)
    assert not_null(pair) == {"id", "note", "n"}
    check(pair)
    (report,) = pair.reports("t", options=ACCEPT)
    assert report.version == 3, "once"


def test_a_null_that_a_source_calls_impossible_is_published(pair: Pair) -> None:
    """Whatever the source says, as if its engine did not enforce it."""
    alter(pair, "note", is_nullable=True)
    pair.legacy.execute("UPDATE t SET note = NULL WHERE id = 7")
    known = formats.commit
    with pytest.MonkeyPatch.context() as patch:

        def claiming(store: Store, name: str, new: NewVersion) -> int:
            layout = new.layout.with_not_null(COLUMNS)
            return known(store, name, replace(new, layout=layout))

        patch.setattr(formats, "commit", claiming)
        assert pair.refresh("t").version == 0
    assert not_null(pair) == {"id", "n"}
    check(pair)


def test_tables_of_older_releases_follow(pair: Pair) -> None:
    """By what their files say of their columns; floats have no statistics, and stay nullable."""
    with declaring_bookkeeping():
        pair.refresh("t")
    assert not_null(pair) == set()
    assert pair.refresh("t").version == 1
    assert not_null(pair) == {"id", "note"}
    check(pair)
    fill(pair.legacy, ROWS, 10)
    assert pair.refresh("t").version == 2
    assert not_null(pair) == {"id", "note"}
    pair.fragment_lines["t"] = 'method = "full"'
    (report,) = pair.reports("t", options=ACCEPT)
    assert report.version == 2, "nobody knows more of them"
    fill(pair.legacy, 2 * ROWS, 10)
    (report,) = pair.reports("t", options=ACCEPT)
    assert report.error is None
    assert not_null(pair) == {"id", "note", "n"}, "all rows were written again"
    check(pair)


def test_an_older_release_that_goes_on_may_have_written_nulls(pair: Pair) -> None:
    """It keeps what is declared, or declares its own columns, and looks for no NULL."""
    pair.refresh("t")
    alter(pair, "note", is_nullable=True)
    pair.legacy.execute("UPDATE t SET note = NULL WHERE id = 7")
    before = table(pair).schema().to_json()
    with keeping_declarations():
        assert pair.refresh("t").version == 1
    assert table(pair).schema().to_json() == before, "as a release that knows nothing of it"
    assert pair.refresh("t").version == 2, "nothing changed but what is declared"
    assert not_null(pair) == {"id"}, "n is no longer known"
    check(pair)

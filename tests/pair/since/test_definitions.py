"""Refreshes by a marker after the tables changed in ways that no marker shows, on three engines.

Names mean other columns, expressions are others, or another table has the name; no row is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from source_agent.engines.relations.markers import MarkerKind
from tests.harness.absent import needs_release
from tests.harness.legacy import LEGACIES, Legacy
from tests.harness.pair import expect_equal
from tests.harness.servers import PostgreSQL
from tests.pair.since.rig import BY_VERSION, TYPES, XMIN, Rig, by_time, now, of, used
from warehouse_agent.storage.formats import head

ROWS = 60
OLD = "2001-01-01 00:00:00"
OTHER = "the mark is of another database or table"
CHANGED = "a table, a column or an expression that the relation reads was changed or replaced"
VERSIONED = '{ versioned = true, late = "1s" }'
KINDS = [
    ("sqlite", MarkerKind.TIME),
    ("sqlite", MarkerKind.VERSION),
    ("sqlite", MarkerKind.CHECKSUM),
    ("sqlite", MarkerKind.JOINED),
    ("postgresql", MarkerKind.TIME),
    ("postgresql", MarkerKind.XMIN),
    ("postgresql", MarkerKind.JOINED),
    ("mariadb", MarkerKind.TIME),
    ("mariadb", MarkerKind.VERSIONED),
    ("mariadb", MarkerKind.JOINED),
    ("mysql", MarkerKind.TIME),
    ("mysql", MarkerKind.JOINED),
]
GENERATED = {
    "sqlite": "ALTER TABLE goods ADD COLUMN {name} BIGINT AS ({sql})",
    "postgresql": "ALTER TABLE goods ADD COLUMN {name} BIGINT GENERATED ALWAYS AS ({sql}) STORED",
    "mariadb": "ALTER TABLE goods ADD COLUMN {name} BIGINT AS ({sql}) VIRTUAL",
}


class Goods(Rig):
    """A pair over `goods`: id, price, checksum; the columns `at`, `version` not published."""

    def __init__(self, legacy: Legacy, folder: Path, kind: MarkerKind) -> None:
        names = TYPES[legacy.engine]
        options = " WITH SYSTEM VERSIONING" if kind is MarkerKind.VERSIONED else ""
        self.creation = (
            f"CREATE TABLE goods (id {names['int8']} PRIMARY KEY, at {names['time']},"
            f" version {names['int8']}, checksum {names['int8']}, price_new {names['int8']},"
            f" price {names['int8']}){options}"
        )
        legacy.execute(self.creation)
        old = of(legacy, OLD)
        rows = [(i, old, i, i, i * 100, i) for i in range(ROWS)]
        legacy.many("INSERT INTO goods VALUES (?, ?, ?, ?, ?, ?)", rows)
        time = by_time(legacy, column="at")
        marker = {
            MarkerKind.TIME: time,
            MarkerKind.VERSION: BY_VERSION,
            MarkerKind.XMIN: XMIN,
            MarkerKind.VERSIONED: VERSIONED,
            MarkerKind.CHECKSUM: '{ checksum = "checksum" }',
        }
        lines = 'columns = ["id", "price", "checksum"]\nkey = ["id"]\n'
        if kind is MarkerKind.JOINED:
            columns = f"id {names['int8']} PRIMARY KEY, one_at {names['time']}"
            legacy.execute(f"CREATE TABLE one ({columns})")
            legacy.execute("INSERT INTO one VALUES (1, ?)", old)
            sql = "SELECT g.id, g.price, g.checksum, g.at, o.one_at FROM goods g"
            sql += " JOIN one o ON o.id = 1"
            other = by_time(legacy, column="one_at")
            lines += f'query = "{sql}"\nmarkers = {{ g = {time}, o = {other} }}'
        else:
            lines += f'table = "goods"\nmarker = {marker[kind]}'
        if kind is MarkerKind.VERSIONED:
            legacy.execute("SET system_versioning_alter_history = KEEP")
        super().__init__(legacy, folder, "goods", lines)

    def check(self) -> None:
        """Compare what is published with what the owner reads, by the names of the columns."""
        snapshot = head(self.pair.store, self.name)
        assert snapshot is not None
        names = ", ".join(snapshot.layout.data_names)
        self.legacy.execute(f"CREATE VIEW seen AS SELECT {names} FROM goods")
        theirs = self.legacy.rows("seen")
        self.legacy.execute("DROP VIEW seen")
        expect_equal(self.published(), theirs)

    def settle(self) -> None:
        """Refresh until the marker is used."""
        if self.legacy.engine == "mariadb":
            self.await_next_second()
        self.refresh()
        assert used(self.refresh())["used"] is True
        assert len(self.published()) == ROWS


SAMPLE = [KINDS[0], KINDS[5], KINDS[8]]
OTHERS = [
    pytest.param(
        kind, marks=() if kind in SAMPLE else pytest.mark.soak, id=f"{kind[0]}-{kind[1].value}"
    )
    for kind in KINDS
]


@pytest.fixture(
    params=[
        pytest.param(
            kind,
            marks=pytest.mark.soak if kind[0] == "mysql" else (),
            id=f"{kind[0]}-{kind[1].value}",
        )
        for kind in KINDS
    ]
)
def goods(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Goods]:
    engine, kind = request.param
    legacy = LEGACIES[engine](request, tmp_path)
    made = Goods(legacy, tmp_path / "pair", kind)
    yield made
    made.pair.stop()
    legacy.close()


def expect_compared(goods: Goods) -> None:
    """Refresh, and expect that all rows were compared and are equal."""
    report = goods.refresh()
    why = used(report)["why"] or ""
    assert report.proof == "total"
    assert why == CHANGED or why.startswith(OTHER)
    goods.check()


def test_columns_that_were_renamed(goods: Goods) -> None:
    """The name has the values of a column that was filled before the mark."""
    goods.settle()
    goods.legacy.execute("ALTER TABLE goods RENAME COLUMN price TO price_old")
    goods.legacy.execute("ALTER TABLE goods RENAME COLUMN price_new TO price")
    expect_compared(goods)


@pytest.mark.parametrize("goods", OTHERS, indirect=True)
def test_a_column_that_was_dropped_and_made_again(goods: Goods) -> None:
    """All rows have the default of the new column."""
    goods.settle()
    goods.legacy.execute("ALTER TABLE goods DROP COLUMN price")
    goods.legacy.execute(f"ALTER TABLE goods ADD COLUMN price {TYPES[goods.legacy.engine]['int8']}")
    expect_compared(goods)


@pytest.mark.parametrize("goods", OTHERS, indirect=True)
def test_an_expression_that_was_changed(goods: Goods) -> None:
    """A generated column is made again with another expression."""
    engine = goods.legacy.engine
    goods.legacy.execute("ALTER TABLE goods DROP COLUMN price")
    goods.legacy.execute(GENERATED[engine].format(name="price", sql="price_new + 1"))
    goods.settle()
    goods.legacy.execute("ALTER TABLE goods DROP COLUMN price")
    goods.legacy.execute(GENERATED[engine].format(name="price", sql="price_new + 2"))
    expect_compared(goods)


OF_POSTGRESQL = [kind for kind in KINDS if kind[0] == "postgresql"]


@pytest.mark.parametrize("goods", OF_POSTGRESQL, indirect=True)
@pytest.mark.parametrize(("stored", "first"), [("STORED", 17), ("VIRTUAL", 18)])
def test_an_expression_that_was_set(
    goods: Goods, postgresql: PostgreSQL, stored: str, first: int
) -> None:
    """The column keeps its number, and where it is virtual the table keeps its file."""
    needs_release(postgresql.release, first, f"SET EXPRESSION of {stored} columns")
    generated = f"price BIGINT GENERATED ALWAYS AS (price_new + 1) {stored}"
    goods.legacy.execute(f"ALTER TABLE goods DROP COLUMN price, ADD COLUMN {generated}")
    goods.settle()
    goods.legacy.execute("ALTER TABLE goods ALTER COLUMN price SET EXPRESSION AS (price_new + 2)")
    expect_compared(goods)


@pytest.mark.parametrize("goods", OF_POSTGRESQL, indirect=True)
def test_a_label_that_was_renamed(goods: Goods) -> None:
    """No row is written, and each reads otherwise."""
    legacy = goods.legacy
    legacy.execute("CREATE TYPE class AS ENUM ('cheap', 'dear')")
    legacy.execute("ALTER TABLE goods DROP COLUMN price, ADD COLUMN price class DEFAULT 'cheap'")
    goods.settle()
    legacy.execute("ALTER TYPE class RENAME VALUE 'cheap' TO 'fair'")
    expect_compared(goods)


def test_a_table_that_was_restored_from_a_dump(goods: Goods) -> None:
    """Rows are as old as the dump again, and so are their markers."""
    legacy = goods.legacy
    goods.settle()
    dumped = legacy.rows("goods")
    legacy.execute(
        "UPDATE goods SET price = price + 7, version = version + 1000, checksum = checksum + 1,"
        " at = ?",
        now(legacy),
    )
    assert goods.refresh().rows_updated == ROWS
    legacy.execute("DROP TABLE goods")
    legacy.execute(goods.creation)
    legacy.many("INSERT INTO goods VALUES (?, ?, ?, ?, ?, ?)", dumped)
    expect_compared(goods)


@pytest.mark.parametrize("goods", OTHERS, indirect=True)
def test_a_table_that_was_swapped(goods: Goods) -> None:
    """Another table with the same columns and keys takes the name."""
    legacy = goods.legacy
    goods.settle()
    legacy.execute("ALTER TABLE goods RENAME TO previous")
    names = TYPES[legacy.engine]
    if legacy.engine == "mariadb":
        legacy.execute("CREATE TABLE other LIKE previous")
    else:
        legacy.execute(
            f"CREATE TABLE other (id {names['int8']} PRIMARY KEY, at {names['time']},"
            f" version {names['int8']}, checksum {names['int8']}, price_new {names['int8']},"
            f" price {names['int8']})"
        )
    columns = "id, at, version, checksum, price_new"
    legacy.execute(f"INSERT INTO other ({columns}, price) SELECT {columns}, -5 FROM previous")
    legacy.execute("ALTER TABLE other RENAME TO goods")
    expect_compared(goods)

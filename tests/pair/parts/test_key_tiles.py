"""Passes in tiles between keys that are not one integer, on real engines.

The oracle is the owner's own connection. Keys are a composite of text, date and number, a text, a
date and a UUID, each as a legacy system of the engine would have it.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy, SqliteLegacy
from tests.harness.pair import Pair, expect_equal
from tests.pair.parts.test_tiles import Writer, audit, cut, rows_read, second_connection, staged
from warehouse_agent.planning.choice import Method
from warehouse_agent.refresh import auxiliary_table
from warehouse_agent.storage import formats

pytestmark = pytest.mark.spark

ROWS = 1600
TILE = 200
FREE = f'require = "fuzzy"\nincremental = {{ rows = {TILE}, pause_s = 0.01 }}'
IN_TILES = f'method = "range"\n{FREE}'
ENGINES = ["sqlite-journal", *FAMILY, "postgresql"]
TEXT = {"postgresql": 'varchar(40) COLLATE "C"', "mariadb": "varchar(40) COLLATE utf8mb4_bin"}
UUID = {"postgresql": "uuid", "mariadb": "binary(16)", "sqlite": "text"}
LETTERS = ["A", "b", "B~", "a b", "", "é", "\U0001f600", "zz", "0"]
Key = tuple[Any, ...]


def days(number: int) -> str:
    return str(date(1999, 1, 1) + timedelta(number))


def identified(engine: str, number: int) -> Any:
    found = uuid.UUID(int=random.Random(number).getrandbits(128))
    return found.bytes if engine == "mariadb" else str(found)


# The columns of a key, and its values: of any number, a key that no other number has.
KEYS: dict[str, tuple[Callable[[str], str], Callable[[str, int], Key]]] = {
    "composite": (
        lambda engine: f"a {TEXT.get(engine, 'text')} NOT NULL, d date NOT NULL, n int NOT NULL",
        lambda _, n: (LETTERS[n % 9], days(n * 7 % 300), n),
    ),
    "text": (
        lambda engine: f"a {TEXT.get(engine, 'text')} NOT NULL",
        lambda _, n: (f"{LETTERS[n % 9]}-{n}",),
    ),
    "date": (lambda _: "a date NOT NULL", lambda _, n: (days(n * 11),)),
    "uuid": (lambda engine: f"a {UUID[engine]} NOT NULL", lambda e, n: (identified(e, n),)),
}


class Orders:
    """A table with one of these keys, and its owner's edits."""

    def __init__(self, legacy: Legacy, kind: str, *, has_snapshots: bool = False) -> None:
        self.legacy, (columns, self._key) = legacy, KEYS[kind]
        definition = columns(legacy.engine)
        self.key = [column.split()[0] for column in definition.split(", ")]
        tail = " ENGINE=MyISAM" if legacy.engine == "mariadb" and not has_snapshots else ""
        legacy.execute(
            f"CREATE TABLE orders (note varchar(60), {definition}, "
            f"PRIMARY KEY ({', '.join(self.key)})){tail}"
        )
        self.insert(range(100, 100 + ROWS))

    def insert(self, numbers: Any, text: str = "note") -> None:
        marks = ", ".join("?" * (len(self.key) + 1))
        rows = [(f"{text} {n}", *self._key(self.legacy.engine, n)) for n in numbers]
        self.legacy.many(f"INSERT INTO orders VALUES ({marks})", rows)

    def update(self, numbers: Any, text: str) -> None:
        rows = [(f"{text} {n}", *self._key(self.legacy.engine, n)) for n in numbers]
        self.legacy.many(f"UPDATE orders SET note = ? WHERE {self._where}", rows)

    def delete(self, numbers: Any) -> None:
        rows = [self._key(self.legacy.engine, n) for n in numbers]
        self.legacy.many(f"DELETE FROM orders WHERE {self._where}", rows)

    @property
    def _where(self) -> str:
        return " AND ".join(f"{name} = ?" for name in self.key)

    def edit(self, text: str, seed: int) -> None:
        """Some of everything, everywhere."""
        chosen = random.Random(seed)
        numbers = chosen.sample(range(100, 100 + ROWS), 60)
        self.update(numbers[:40], text)
        self.delete(numbers[40:])
        self.insert(range(2000 + 50 * seed, 2030 + 50 * seed), text)


@contextlib.contextmanager
def made(request: pytest.FixtureRequest, engine: str, kind: str, folder: Path) -> Iterator[Orders]:
    legacy = LEGACIES[engine](request, folder)
    with contextlib.closing(legacy):
        yield Orders(legacy, kind)


@contextlib.contextmanager
def loaded(spark: SparkSession, orders: Orders, folder: Path) -> Iterator[Pair]:
    with Pair(spark, orders.legacy, folder / "pair", {"orders": 'table = "orders"'}) as pair:
        pair.fragment_lines["orders"] = IN_TILES
        report = pair.refresh("orders")
        assert (report.version, report.tiles) == (0, None)
        yield pair


def check(pair: Pair) -> None:
    """Published == source, row for row."""
    theirs = [
        tuple(str(v) if isinstance(v, uuid.UUID) else v for v in row)
        for row in pair.legacy.rows("orders")
    ]
    expect_equal(pair.published("orders"), theirs)


# Each engine and each kind of key (`test_keys` has other pairs); all pairs in the soak.
SAMPLE = {("sqlite-journal", "date"), ("mariadb", "text"), ("postgresql", "uuid")}
PAIRS = [
    pytest.param(engine, kind, marks=() if is_sample else pytest.mark.soak)
    for engine in ENGINES
    for kind in KEYS
    for is_sample in [kind == "composite" or (engine, kind) in SAMPLE]
]


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_a_quiet_pass(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, engine: str, kind: str
) -> None:
    """The copy equals the source after each pass; each row is read once, and no scan is made."""
    with made(request, engine, kind, tmp_path) as orders, loaded(spark, orders, tmp_path) as pair:
        orders.edit("first", 1)
        before = len(audit(pair))
        report = pair.refresh("orders")
        assert (report.version, report.consistency, report.method) == (1, "fuzzy", "range")
        assert report.tiles is not None
        assert 0.7 * ROWS / TILE <= report.tiles <= ROWS / TILE + 1
        assert (report.tiles_done, report.resumed_at) == (report.tiles, 0)
        rows = len(orders.legacy.rows("orders"))
        assert (report.source_scans, report.source_rows_read) == (0, rows)
        sizes = [line["rows_read"] for line in audit(pair)[before:]]
        assert (len(sizes), sum(sizes)) == (report.tiles, rows)
        assert max(sizes) <= 2 * TILE
        check(pair)
        pair.check_feed("orders", 1)
        assert not staged(pair).exists()
        report = pair.refresh("orders")
        assert (report.version, report.round_trips) == (1, report.tiles)
        orders.edit("second", 2)
        assert pair.refresh("orders").version == 2
        check(pair)
        pair.check_feed("orders", 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pass_among_writers(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    """What nobody touched is exactly right, nobody waits longer than for a tile, and the quiet pass
    after it is exact."""
    with (
        made(request, engine, "composite", tmp_path) as orders,
        loaded(spark, orders, tmp_path) as pair,
    ):
        orders.edit("before", 1)
        other = second_connection(orders.legacy)
        beside = object.__new__(Orders)
        beside.legacy, beside._key, beside.key = other, orders._key, orders.key
        if not isinstance(orders.legacy, SqliteLegacy):
            other.engine = orders.legacy.engine

        def write(number: int, text: str) -> None:
            chosen = 100 + number % ROWS
            beside.update([chosen], text)
            if number % 5 == 0:
                beside.delete([chosen])
                beside.insert([chosen], text)

        writer = Writer(write)
        before = len(audit(pair))
        writer.start()
        try:
            report = pair.refresh("orders")
        finally:
            writer.stop()
        assert writer.error is None
        assert report.tiles_done == report.tiles
        assert len(writer.waits) > 20
        touched = {100 + number % ROWS for number in writer.touched}
        at_rest = [
            [row for row in rows if row[-1] not in touched]
            for rows in (pair.published("orders"), orders.legacy.rows("orders"))
        ]
        expect_equal(*at_rest)
        tiles = [line["seconds"] for line in audit(pair)[before:]]
        assert max(writer.waits) <= max(tiles) + 1.0
        pair.refresh("orders")
        check(pair)
        other._connection.close()  # type: ignore[attr-defined]


@pytest.fixture
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Orders]:
    with made(request, "sqlite-journal", "composite", tmp_path) as found:
        yield found


@pytest.fixture
def pair(spark: SparkSession, orders: Orders, tmp_path: Path) -> Iterator[Pair]:
    with loaded(spark, orders, tmp_path) as found:
        yield found


def test_a_cut_pass_goes_on(pair: Pair, orders: Orders) -> None:
    """Nothing is reduced or read twice."""
    orders.edit("once", 1)
    rows = len(pair.legacy.rows("orders"))
    begun: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        begin = auxiliary_table.begin
        patch.setattr(auxiliary_table, "begin", lambda *args: begun.append(args) or begin(*args))  # type: ignore[func-returns-value]
        for _ in range(3):
            cut(pair)
        base, fragment = formats.head(pair.store, "orders"), pair.config().fragments["orders"]
        known = auxiliary_table.tiled(pair.store, fragment, base)
        assert known is not None
        report = pair.refresh("orders")
    assert (known.tiles, known.tiles_done) == (report.tiles, 3)
    assert len(begun) == 1
    assert (report.resumed_at, report.tiles_done) == (3, report.tiles)
    assert rows_read(pair) == rows
    check(pair)


def test_a_damaged_table_of_tiles_is_begun_again(pair: Pair, orders: Orders) -> None:
    orders.edit("once", 1)
    cut(pair)
    table = staged(pair) / "pass" / "pass.json"
    table.write_text(table.read_text().replace('"keys"', '"other"'))
    report = pair.refresh("orders")
    assert (report.resumed_at, report.version) == (0, 1)
    check(pair)


def test_all_rows_changed(pair: Pair, orders: Orders) -> None:
    """Every tile comes as it is; then some of them, whose rows are listed in one step."""
    pair.fragment_lines["orders"] = FREE
    orders.update(range(100, 100 + ROWS), "all")
    report = pair.refresh("orders")
    assert (report.version, report.method) == (1, Method.FULL.value)
    check(pair)
    pair.legacy.execute("UPDATE orders SET note = 'some ' || n WHERE a < 'a'")
    orders.update([105, 1205], "and a few")
    assert pair.refresh("orders").method == Method.RANGE.value
    check(pair)
    pair.check_feed("orders", 2)
    pair.legacy.execute("DELETE FROM orders WHERE a = 'é'")  # whole tiles
    orders.insert(range(5000, 5400), "behind")
    assert pair.refresh("orders").version == 3
    check(pair)
    pair.check_feed("orders", 3)


def test_rows_that_move_between_tiles(pair: Pair) -> None:
    pair.legacy.execute("UPDATE orders SET a = 'zzz' WHERE n % 50 = 0")
    pair.legacy.execute("UPDATE orders SET d = '1801-05-05' WHERE n % 70 = 0")
    pair.refresh("orders")
    check(pair)
    pair.check_feed("orders", 1)


def test_what_has_no_order_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """By the warehouse if the types have none, else by the source, before a row is read."""
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)
    with contextlib.closing(legacy):
        legacy.execute("CREATE TABLE folded (code TEXT NOT NULL COLLATE NOCASE PRIMARY KEY)")
        legacy.execute("CREATE TABLE floats (x REAL NOT NULL PRIMARY KEY)")
        legacy.execute("INSERT INTO folded VALUES ('a'), ('b')")
        legacy.execute("INSERT INTO floats VALUES (1.5), (2)")
        relations = {name: f'table = "{name}"' for name in ("folded", "floats")}
        with Pair(spark, legacy, tmp_path / "pair", relations) as pair:
            pair.refresh("folded")
            pair.fragment_lines |= {"folded": IN_TILES, "floats": IN_TILES}
            before = rows_read(pair)
            error = pair.error("folded")
            assert (error["code"], error["exit_code"]) == ("CONFIGURATION", 2)
            assert "key (code)" in error["message"]
            assert "NOCASE" in error["message"]
            error = pair.error("floats")
            assert (error["code"], error["exit_code"]) == ("CONFIGURATION", 2)
            assert "x has the type float8" in error["message"]
            assert rows_read(pair) == before


def test_nulls_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)
    with contextlib.closing(legacy):
        legacy.execute("CREATE TABLE orders (a TEXT, b INT, note TEXT, PRIMARY KEY (a, b))")
        rows = [(f"k{n % 5}", n, "x") for n in range(300)]
        legacy.many("INSERT INTO orders VALUES (?, ?, ?)", rows)
        with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
            pair.fragment_lines["orders"] = FREE.replace(str(TILE), "50")
            pair.refresh("orders")
            for null in ((None, 5), ("k3", None)):
                legacy.execute("INSERT INTO orders VALUES (?, ?, 'null')", *null)
                assert pair.error("orders")["code"] == "NULL_KEY"
                legacy.execute("DELETE FROM orders WHERE note = 'null'")
            pair.refresh("orders")  # goes on behind the tiles that were finished
            legacy.execute("INSERT INTO orders VALUES ('k2', 7000, 'no null')")
            pair.refresh("orders")
            check(pair)


def test_random_edits_between_passes(pair: Pair, orders: Orders) -> None:
    """Keys that change, come and go anywhere, tiles that empty: equal after every quiet pass; once
    each step is Spark's."""
    chosen = random.Random(7)
    for turn in range(4):
        pair.small_bytes = 0 if turn == 1 else None
        rows = 3 * TILE if turn == 1 else TILE  # Spark has jobs for each tile
        pair.fragment_lines["orders"] = IN_TILES.replace(f"{TILE}", f"{rows}")
        orders.edit(f"turn {turn}", turn + 3)
        low = chosen.randrange(100, 1500)
        marks = (chosen.choice(LETTERS), days(chosen.randrange(300)), low, low + 90)
        pair.legacy.execute("UPDATE orders SET a = ?, d = ? WHERE n BETWEEN ? AND ?", *marks)
        if turn == 2:
            gone = chosen.choice(LETTERS)
            pair.legacy.execute("DELETE FROM orders WHERE a = ?", gone)
        report = pair.refresh("orders")
        assert report.version == turn + 1
        check(pair)
        pair.check_feed("orders", report.version)

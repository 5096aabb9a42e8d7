"""Random schemas, edits and methods: after every refresh the published table equals the source.

The engine decides what it can hold; within that the names, types, keys and values are as awkward as
they come: reserved words, names that Delta refuses, NULL against its spellings, keys that collide
when they are concatenated carelessly, extremes of every type. An edit script is a list of tables;
the source is made to hold one after the other, and what lies between two of them is one refresh, by
a method that is drawn for it.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, event, given, note, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.harness.legacy import Legacy, MariaLegacy, MysqlLegacy, PostgresLegacy, SqliteLegacy
from tests.harness.mysql_server import MySQL
from tests.harness.pair import Pair, expect_equal
from tests.harness.servers import MariaDB, PostgreSQL
from warehouse_agent.refresh.job import Options

Values = st.SearchStrategy[Any]
Row = tuple[Any, ...]

SOAK_EXAMPLES = 500  # from here on the profile is one that has the time
ROWS_MAX = 14
FILLER_ROWS_MAX = 400  # of a table with an integer key, so that it has many ranges

# The adversarial corpus: values that peers were seen to confuse.
TEXTS = [
    "", "<null>", "NULL", "null", "DEFAULT_REPLACEMENT_STRING", "q|r", "s", "12", "3", "1", "23",
    "11", "0.71", ".71", "12345678901234", "a", "A", "a ", " a", "a\n", "a\u00a0", "\u00e9",
    "e\u0301", "\u1e9e", "\U0001f600", "-", "_", "'", '"', "\\", "\\N", "%s", "?",
    "2024-10-27 02:30",
    "0000-00-00", "infinity", '{"b": 1, "a": 2}', "\u202e", "x" * 99,
]  # fmt: skip
NAMES = [
    "a b,c;=(x)", "Select", "a b", "a_b", "a;b", "a.b", "a`b", 'a"b', "a'b", "é", "e\u0301", "%s",
    "count", "sum", "key", "position", "hash", "rows", "_", "tab\there", "{}", "=", "from", "ORDER",
    "driftline_hi", "null", "1", "$1", ":a", "--", "/*", "x" * 60, "日本",
]  # fmt: skip
METHODS = ["", *(f'method = "{name}"' for name in ("range", "group", "sketch", "full"))]
REFUSED = {"mariadb": {"tab\there"}}  # harness or engine cannot have these


@dataclass(frozen=True)
class Kind:
    """A column type: its DDL, its values, and whether it can be part of a key."""

    ddl: str
    values: Values
    is_key: bool = False


def integers(bits: int) -> Values:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.one_of(
        st.sampled_from([low, low + 1, -1, 0, 1, 11, 111, high - 1, high]), st.integers(low, high)
    )


def texts(*, nul: bool, size: int = 100) -> Values:
    letters = st.characters(exclude_categories=["Cs"], min_codepoint=0 if nul else 1)
    random = st.text(letters, max_size=size)
    return st.one_of(st.sampled_from(TEXTS), random, *([st.just("a\x00b")] if nul else []))


def reals(*, special: bool) -> Values:
    chosen = [0.0, 0.71, 0.1, 1 / 3, 1e-26, 1234567.125, 5e-324, 1.7976931348623157e308, 2.0**53]
    if special:
        chosen += [-0.0, math.inf, -math.inf]
    random = st.floats(allow_nan=False, allow_infinity=special).filter(
        lambda value: special or value != 0
    )
    return st.one_of(st.sampled_from(chosen), random)


CENTS = st.one_of(
    st.sampled_from([0, 1, -1, 10, 1030, 10**12 - 1, -(10**12) + 1]),
    st.integers(-(10**12) + 1, 10**12 - 1),
).map(lambda cents: Decimal(cents).scaleb(-2))
DATES = st.one_of(
    st.sampled_from([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1582, 10, 10)]), st.dates()
)
FOLD = dt.datetime.fromisoformat("2024-10-27T02:30:00.000001")
TIMES = st.one_of(st.just(FOLD), st.just(FOLD.replace(microsecond=2)), st.datetimes())
# MariaDB has no year before 1000 that it promises to keep.
LATER = st.datetimes(min_value=dt.datetime.fromisoformat("1000-01-01"))
BLOBS = st.one_of(st.sampled_from([b"", b"\x00", b"\x00\x00", b"\xff"]), st.binary(max_size=40))

KINDS: dict[str, list[Kind]] = {
    "sqlite": [
        Kind("INTEGER", integers(32), True),
        Kind("BIGINT", integers(64), True),
        Kind("TEXT", texts(nul=True), True),
        Kind("DECIMAL(12,2)", CENTS.map(str)),
        Kind("DOUBLE", reals(special=True)),
        Kind("DATE", DATES.map(str), True),
        Kind("TIMESTAMP", TIMES.map(str)),
        Kind("BLOB", BLOBS, True),
        Kind("BOOLEAN", st.integers(0, 1)),
    ],
    "postgresql": [
        Kind("int", integers(32), True),
        Kind("bigint", integers(64), True),
        Kind("text", texts(nul=False), True),
        Kind("numeric(12,2)", CENTS, True),
        Kind("double precision", st.one_of(reals(special=True), st.just(math.nan))),
        Kind("date", DATES, True),
        Kind("timestamp", TIMES, True),
        Kind("timestamptz", LATER.map(lambda t: t.replace(year=min(t.year, 9998), tzinfo=dt.UTC))),
        Kind("bytea", BLOBS, True),
        Kind("boolean", st.booleans(), True),
    ],
    "mariadb": [
        Kind("INT", integers(32), True),
        Kind("BIGINT", integers(64), True),
        Kind("VARCHAR(100) COLLATE utf8mb4_nopad_bin", texts(nul=True), True),
        Kind("DECIMAL(12,2)", CENTS, True),
        Kind("DOUBLE", reals(special=False)),
        Kind("DATE", DATES.filter(lambda d: d.year >= 1000), True),
        Kind("DATETIME(6)", LATER, True),
        Kind("LONGBLOB", BLOBS),
        Kind("VARBINARY(40)", BLOBS, True),
        Kind("BOOLEAN", st.booleans()),
    ],
}


@dataclass(frozen=True)
class Story:
    """A table and what becomes of it."""

    engine: str
    ddl: str
    tables: list[list[Row]]
    methods: list[str]  # of the refresh to each table, as a line of the warehouse's file
    marks: str


@st.composite
def stories(draw: st.DrawFn, engine: str) -> Story:
    kinds = KINDS[engine]
    keys = draw(
        st.one_of(
            st.sampled_from(kinds[:2]).map(lambda kind: [kind]),
            st.lists(st.sampled_from([k for k in kinds if k.is_key]), min_size=1, max_size=3),
        )
    )
    others = draw(st.lists(st.sampled_from(kinds), min_size=0, max_size=6))
    columns = [*keys, *others]
    fold = (lambda name: name) if engine == "postgresql" else str.lower
    allowed = [n for n in NAMES if n not in REFUSED.get(engine, ())]
    pool = [*allowed, *(n.swapcase() for n in allowed[:2]), *(f"c{i}" for i in range(4))]
    names = draw(
        st.lists(
            st.sampled_from(pool), min_size=len(columns), max_size=len(columns), unique_by=fold
        )
    )
    # Columns stand in any order; the key's is its own.
    order = draw(st.permutations(range(len(columns))))
    quote = "`" if engine == "mariadb" else '"'
    quoted = [quote + name.replace(quote, quote * 2) + quote for name in names]
    lines = [f"{quoted[i]} {columns[i].ddl}{' NOT NULL' if i < len(keys) else ''}" for i in order]
    key = ", ".join(quoted[: len(keys)])
    # SQLite does not promise that a primary key is NOT NULL; a rowid alias it does.
    ddl = f"CREATE TABLE t ({', '.join(lines)}, PRIMARY KEY ({key}))"
    cells = [
        column.values if i < len(keys) else st.one_of(st.none(), column.values)
        for i, column in enumerate(columns)
    ]
    some_rows = st.lists(
        st.tuples(*cells), max_size=ROWS_MAX, unique_by=lambda row: repr(_same(row[: len(keys)]))
    )
    tables = draw(st.lists(some_rows, min_size=2, max_size=4))
    if len(keys) == 1 and keys[0] in kinds[:2] and draw(st.booleans()):
        tables = [_filled(draw, rows, cells, number) for number, rows in enumerate(tables)]
    event(f"{engine}: {len(keys)} key columns, {len(columns)} columns")
    placed = [[tuple(row[i] for i in order) for row in rows] for rows in tables]
    methods = [draw(st.sampled_from(METHODS)) for _ in placed]
    return Story(engine, ddl, placed, methods, ", ".join("?" * len(columns)))


def _filled(draw: st.DrawFn, rows: list[Row], cells: list[Values], number: int) -> list[Row]:
    """Many more rows, of which a few differ from one table to the next."""
    count = draw(st.integers(0, FILLER_ROWS_MAX))
    usual = draw(st.tuples(*cells[1:]))
    other = draw(st.tuples(*cells[1:]))
    present = {row[0] for row in rows}
    filler = [(1000 + 7 * i, *(other if (i + number) % 61 == 0 else usual)) for i in range(count)]
    return [*rows, *(row for row in filler if row[0] not in present)]


def _same(values: Row) -> Row:
    """Keys that an engine takes for one are one: 0.0 and -0.0, 1.0 and 1.00, True and 1."""
    return tuple(
        int(v)
        if isinstance(v, bool)
        else v.normalize() + 0
        if isinstance(v, Decimal)
        else float(v) + 0.0
        if isinstance(v, float)
        else v
        for v in values
    )


_NUMBERS = itertools.count()


def run(spark: SparkSession, legacy: Legacy, folder: Path, story: Story) -> None:
    """Load the first table, then refresh to each of the others, and once more to nothing new."""
    note(story.ddl)
    legacy.execute(story.ddl)
    insert = f"INSERT INTO t VALUES ({story.marks})"
    with Pair(spark, legacy, folder, {"t": 'table = "t"'}) as pair:
        previous: int | None = None
        for rows, pair.fragment_lines["t"] in zip(story.tables, story.methods, strict=True):
            legacy.execute("DELETE FROM t")
            if rows:
                legacy.many(insert, rows)
            report = pair.refresh("t", options=Options(allow_shrink=True))
            assert report.rows_total == len(rows)
            pair.check("t")
            if previous is not None and report.version != previous:
                assert report.version == previous + 1
                pair.check_feed("t", previous + 1)
            previous = report.version
        assert pair.refresh("t").version == previous
        expect_equal(pair.read("t"), legacy.rows("t"))  # Spark reads these types and names, too


def examples(fast: int, soak: int) -> settings:
    """So many examples, many more where there is time. An example takes seconds and a failing one
    prints its whole story, so that shrinking it is worth its time in the soak profile only."""
    if settings.default is not None and settings.default.max_examples >= SOAK_EXAMPLES:
        return settings(max_examples=soak)
    return settings(max_examples=fast, phases=[Phase.explicit, Phase.reuse, Phase.generate])


def test_sqlite(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    def legacy(folder: Path) -> Legacy:
        return SqliteLegacy(folder / "erp.db", wal=bool(next(_NUMBERS) % 2))

    _test(spark, tmp_path_factory, "sqlite", legacy, examples(8, 300))


def test_postgresql(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _test(
        spark,
        tmp_path_factory,
        "postgresql",
        lambda _: PostgresLegacy(postgresql),
        examples(3, 150),
    )


def test_mariadb(
    spark: SparkSession, mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _test(spark, tmp_path_factory, "mariadb", lambda _: MariaLegacy(mariadb), examples(3, 150))


@pytest.mark.timeout(3600)  # of 700 tables in a soak, each with three refreshes or more
def test_mysql(spark: SparkSession, mysql: MySQL, tmp_path_factory: pytest.TempPathFactory) -> None:
    _test(spark, tmp_path_factory, "mariadb", lambda _: MysqlLegacy(mysql), examples(3, 700))


def _test(
    spark: SparkSession,
    folders: pytest.TempPathFactory,
    engine: str,
    make: Callable[[Path], Legacy],
    chosen: settings,
) -> None:
    @chosen
    @given(story=stories(engine))
    def every_story(story: Story) -> None:
        folder = folders.mktemp("story")
        legacy = make(folder)
        try:
            run(spark, legacy, folder / "pair", story)
        finally:
            legacy.close()

    every_story()

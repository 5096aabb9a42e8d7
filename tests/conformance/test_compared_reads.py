"""`check --reads` on every engine: hard values are equal, and wrong reads are found and named.

A wrong read is a mistake of a kind that engines make, put into the expressions of a relation that a
real server described. Mistakes of encoders: `broken_engines`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.own_values.comparison import ValueComparison, compare
from source_agent.engines.own_values.reading import DriverKey, own_values_of
from source_agent.engines.own_values.sampling import sample
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Consistency, Relation, Shape
from tests.harness.legacies import KINDS, OfPostgreSQL, OfSQLite
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.starts

FLUSHED_S_MAX = 20.0  # until the statistics of a session that has ended are there
FLOATS = [
    "0.1",
    "0.30000000000000004",
    "9007199254740993",
    "-1.4285714285714285e-301",
    "1.7976931348623157e308",
    "2.2250738585072014e-308",
    "1e-99",
    "0",
]
SUBNORMALS = ["5e-324", "2.2250738585072009e-308", "-1e-320"]
TEXTS = ["''", "' '", "'a'", "'a '", "' a'", "'NULL'", "'é'", "'😀'", "'\u00a0'"]
DAYS = ["'0001-01-01'", "'1582-10-10'", "'2000-02-29'", "'9999-12-31'"]
TIMES = ["'0001-01-01 00:00:00'", "'2024-10-27 02:30:00'", "'9999-12-31 23:59:59'"]
# Of each engine: the columns of a table, by name, with their values; NULL is added to each.
Columns = dict[str, tuple[str, list[str]]]
HARD: dict[str, Columns] = {
    "postgresql": {
        "d": ("double precision", [*FLOATS, *SUBNORMALS, "'-0'", "'NaN'", "'Infinity'", "'-inf'"]),
        "f": ("real", ["'-0'", "'NaN'", "1e-45", "3.4028235e38", "16777217", "0.1"]),
        "n": ("numeric", ["'NaN'", "'-Infinity'", "1e-100", "1e100", "0.10", "-0.0"]),
        "i": ("bigint", ["9007199254740993", "-9223372036854775808", "9223372036854775807"]),
        "t": ("text", TEXTS),
        "c": ("char(4)", TEXTS),
        "b": ("bytea", ["''", "'\\x00'", "'\\xc328ff'"]),
        "day": ("date", [*DAYS, "'infinity'", "'4713-01-01 BC'", "'5874897-12-31'"]),
        "at": ("timestamp", [*TIMES, "'-infinity'", "'0044-03-15 BC'", "'2020-01-01 0:00:00.1'"]),
        "zoned": ("timestamptz", [*TIMES, "'infinity'", "'0044-03-15 01:00 BC'", "'1850-01-01'"]),
        "clock": ("timetz", ["'12:00+02'", "'24:00-15:59:59'", "'00:00:00.000001+05:30'"]),
        "span": ("interval", ["'-1 year 2 mons -3 days +04:05:06.7'", "'0'", "'178000000 years'"]),
        "flag": ("boolean", ["true", "false"]),
        "net": ("inet", ["'10.0.0.1'", "'10.0.0.1/8'", "'::1'"]),
        "cash": ("money", ["-92233720368547758.08", "0.01", "1234567.89"]),
        "many": ("float8[]", ["'{0.1,NaN,-0}'", "'{}'"]),
    },
    "mariadb": {
        "d": ("double", [*FLOATS, *SUBNORMALS, "-0e0"]),
        "f": ("float", ["0.1", "1.17549435e-38", "3.4028234e38", "16777217", "-1234567.125"]),
        "n": ("decimal(65,30)", ["1e-30", "-0.000001", "12345678901234567890123456789012345"]),
        "i": ("bigint unsigned", ["9007199254740993", "18446744073709551615"]),
        "t": ("varchar(20)", TEXTS),
        "l": ("varchar(20) character set latin1", ["''", "'é '", "'€'"]),
        "b": ("varbinary(20)", ["''", "x'00'", "x'c328ff'", "'a '"]),
        "day": ("date", DAYS),
        "at": ("datetime(6)", [*TIMES, "'2020-01-01 00:00:00.100000'"]),
        "zoned": ("timestamp(3)", ["'1970-01-02'", "'2024-10-27 02:30:00.5'"]),
        "clock": ("time(3)", ["'-838:59:59'", "'-00:00:00.5'", "'838:59:59'"]),
        "bits": ("bit(9)", ["b'0'", "b'111111111'"]),
    },
    "sqlite": {
        "d": ("real", [*FLOATS, *SUBNORMALS, "-0.0", "9e999", "-9e999"]),
        "n": ("decimal(15,4)", ["0.1", "-0.0", "12345678901.2345", "7"]),
        "i": ("bigint", ["9007199254740993", "-9223372036854775808"]),
        "t": ("text", TEXTS),
        "b": ("blob", ["x''", "x'00'", "x'c328ff'"]),
        "day": ("date", DAYS),
        "any": ("", ["1", "1.0", "'1'", "x'31'", "-0.0", "cast(x'c328' as text)"]),
    },
    "firebird": {
        "d": ("double precision", ["0.1", "0.30000000000000004", "9007199254740993", "1e-99", "0"]),
        "f": ("float", ["0.1", "3.4028234e38", "16777217"]),
        "n": ("decimal(18,4)", ["-0.0001", "99999999999999.9999"]),
        "i": ("bigint", ["9007199254740993", "-9223372036854775808"]),
        "t": ("varchar(20)", TEXTS),
        "c": ("char(4)", TEXTS),
        "l": ("varchar(9) character set win1252", ["'é '", "'€'"]),
        "b": ("blob", ["x''", "x'00'", "x'c328ff'"]),
        "day": ("date", DAYS),
        "at": ("timestamp", [*TIMES, "'2020-01-01 00:00:00.1000'"]),
    },
    "generic over sqlite": {
        "i": ("bigint", ["9007199254740993", "-9223372036854775808"]),
        "n": ("decimal(12,2)", ["0.1", "-12345.67"]),
        "t": ("varchar(20)", TEXTS),
        "b": ("blob", ["x''", "x'00'", "x'c328ff'"]),
        "day": ("date", DAYS),
        "at": ("timestamp", ["'2024-10-27 02:30:00.100000'", "'0001-01-01 00:00:00.000000'"]),
    },
}
HARD["mysql"] = HARD["mariadb"]
HARD["generic over postgresql"] = {
    name: (type, [v for v in values if "inf" not in v and "BC" not in v and "58748" not in v])
    for name, (type, values) in HARD["postgresql"].items()
    if name in {"d", "i", "t", "c", "b", "day", "at", "flag"}
}


@dataclass(frozen=True)
class Fault:
    """A read expression that is wrong, for a column of `HARD`; `seen` is a value that it changes.

    `{}` stands for the expression that the engine chose.
    """

    engine: str
    column: str
    read: str
    seen: str


FAULTS = {
    "postgresql: doubles of 15 digits": Fault(
        "postgresql",
        "d",
        "CASE WHEN d BETWEEN -1 AND 1 THEN to_char(d, '9.99999999999999EEEE')::float8 ELSE {} END",
        "0.30000000000000004",
    ),
    "postgresql: another time zone": Fault(
        "postgresql",
        "zoned",
        "({} AT TIME ZONE 'Asia/Kolkata') AT TIME ZONE 'UTC'",
        "1850-01-01",
    ),
    "postgresql: trimmed text": Fault("postgresql", "t", "pg_catalog.rtrim({})", "'a '"),
    "postgresql: milliseconds": Fault("postgresql", "clock", "({})::pg_catalog.timetz(3)", "05:30"),
    "postgresql: another first byte": Fault(
        "postgresql", "b", "pg_catalog.overlay({}, 'x'::pg_catalog.bytea, 1)", "7828ff"
    ),
    "mariadb: a text that is cut": Fault("mariadb", "d", "LEFT({}, 15)", "0.30000000000000004"),
    "mariadb: floats of six digits": Fault("mariadb", "f", "CONCAT(`f`)", "1234567.125"),
    "mariadb: another time zone": Fault(
        "mariadb", "zoned", "CONVERT_TZ({}, '+00:00', '+01:00')", "2024-10-27"
    ),
    "mariadb: trimmed text": Fault("mariadb", "t", "TRIM({})", "'a '"),
    "mariadb: bytes as text": Fault("mariadb", "b", "CONVERT({} USING latin1)", "c38328c3bf"),
    "sqlite: doubles of 15 digits": Fault(
        "sqlite", "d", "CAST(printf('%.15g', {}) AS REAL)", "0.30000000000000004"
    ),
    "sqlite: trimmed text": Fault("sqlite", "t", "rtrim({})", "'a '"),
    "firebird: singles": Fault(
        "firebird",
        "d",
        "IIF({} BETWEEN 0.1 AND 1, CAST(CAST({} AS FLOAT) AS DOUBLE PRECISION), {})",
        "0.30000000000000004",
    ),
    "firebird: an hour later": Fault(
        "firebird",
        "at",
        "IIF(EXTRACT(YEAR FROM {}) = 2024, DATEADD(1 HOUR TO {}), {})",
        "2024-10-27",
    ),
    "generic: doubles of 15 digits": Fault(
        "generic over postgresql",
        "d",
        "CASE WHEN d BETWEEN -1 AND 1 THEN ltrim(to_char(d, '9.99999999999999EEEE')) ELSE {} END",
        "0.30000000000000004",
    ),
    "generic: trimmed text": Fault("generic over sqlite", "t", "rtrim({})", "'a '"),
}


FAULTS["mysql: a double in a context of text"] = Fault(
    "mysql",
    "d",
    "IF(d = 0 AND ATAN2(d, -1e0) < 0, RPAD('-0', 40, ' '), d * 1e0)",
    "-1.4285714285714285e-301",
)
FAULTS |= {
    name.replace("mariadb", "mysql"): replace(fault, engine="mysql")
    for name, fault in FAULTS.items()
    if fault.engine == "mariadb"
}


def _made(request: pytest.FixtureRequest, engine: str, folder: Path) -> Any:
    if engine in KINDS:
        return KINDS[engine](request, folder)
    if engine == "firebird":
        server = request.getfixturevalue("firebird")  # before the driver is imported
        from tests.harness.legacy_firebird import OfFirebird

        return OfFirebird(folder, server)
    from tests.harness.legacy_generic import GenericOverPostgreSQL, GenericOverSQLite

    if engine.endswith("sqlite"):
        return GenericOverSQLite(folder / "legacy.sqlite")
    return GenericOverPostgreSQL(request.getfixturevalue("postgresql"))


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Legacy]]:
    made: list[Legacy] = []

    def one(engine: str) -> Legacy:
        made.append(_made(request, engine, tmp_path))
        return made[-1]

    yield one
    for legacy in made:
        legacy.close()


def _hard(legacy: Legacy, columns: Columns) -> None:
    """Make the table `hard` of these columns, and of rows that hold every value once."""
    listed = ", ".join(f'"{name}" {type}{legacy.null}' for name, (type, _) in columns.items())
    legacy.run(legacy.sql(f'CREATE TABLE "hard" ("id" INT NOT NULL PRIMARY KEY, {listed})'))
    into = legacy.sql('INSERT INTO "hard" VALUES')
    longest = max(len(values) for _, values in columns.values())
    for row in range(longest + 1):
        values = [
            v[row % (len(v) + 1)] if row % (len(v) + 1) < len(v) else "NULL"
            for _, v in columns.values()
        ]
        legacy.run(f"{into} ({row}, {', '.join(values)})")


def _compared(
    legacy: Legacy,
    relation: Relation,
    change: Callable[[Shape], Shape] = lambda s: s,
    rows: int = 100,
) -> ValueComparison:
    engine = legacy.connect()
    with closing(engine.open()) as session:
        shape = session.describe(relation)
        own = own_values_of(engine, session)
        assert own is not None
        return compare(session, own, change(shape), rows)


def _broken(shape: Shape, fault: Fault) -> Shape:
    """Return a shape with the wrong read expression."""
    plan = plan_of(shape)
    place = [column.name for column in shape.recipe.columns].index(fault.column)
    reads = list(plan.reads)
    reads[place] = fault.read.replace("{}", reads[place])
    return replace(shape, plan=replace(plan, reads=tuple(reads)))


@pytest.mark.parametrize("engine", HARD)
def test_hard_values_are_equal(engine: str, make: Callable[[str], Legacy]) -> None:
    legacy = make(engine)
    _hard(legacy, HARD[engine])
    found = _compared(legacy, Relation("hard", table="hard"))
    assert {
        c.name: (c.samples, c.not_compared) for c in found.columns if c.differing or c.not_compared
    } == {}
    assert (found.missing, found.unpaired) == ((), 0)
    assert found.rows == max(len(v) for _, v in HARD[engine].values()) + 1
    assert all(c.equal == found.rows and c.nulls < c.equal for c in found.columns)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_read_is_found(name: str, make: Callable[[str], Legacy]) -> None:
    fault = FAULTS[name]
    legacy = make(fault.engine)
    _hard(legacy, HARD[fault.engine])

    found = _compared(legacy, Relation("hard", table="hard"), lambda shape: _broken(shape, fault))
    assert found.differs
    assert [c.name for c in found.columns if c.differing] == [fault.column]
    (column,) = (c for c in found.columns if c.differing)
    assert column.equal, "its NULL"
    shown = [f"{s.published} {s.driver}" for s in column.samples]
    assert any(fault.seen.strip("'") in text for text in shown), shown


def test_a_writer_between_two_reads_is_no_difference(tmp_path: Path) -> None:
    legacy = OfSQLite(tmp_path / "legacy.sqlite", journal="delete")
    _hard(legacy, HARD["sqlite"])
    engine = legacy.connect()
    with closing(engine.open()) as session:
        shape = session.describe(Relation("hard", table="hard"))
        own = own_values_of(engine, session)
        assert own is not None
        read, written = own.rows, list[int]()

        def rows_after_a_writer(shape: Shape, keys: Sequence[DriverKey]) -> list[DriverKey]:
            session.pause()
            if not written:
                legacy.run("UPDATE hard SET t = 'written', d = 2.5 WHERE id = 1")
                written.append(1)
            return read(shape, keys)

        own.rows = rows_after_a_writer  # type: ignore[method-assign]
        found = compare(session, own, shape, 100)
        assert session.snapshot.consistency is Consistency.FUZZY
        assert written
        assert not found.differs, found
        broken = _broken(shape, FAULTS["sqlite: trimmed text"])
        assert compare(session, own, broken, 100).differs, "it is there again at a second look"


@pytest.mark.parametrize("engine", ["postgresql", "mariadb", "mysql", "sqlite"])
def test_both_ends_of_an_indexed_column_are_in_the_sample(
    engine: str, make: Callable[[str], Legacy]
) -> None:
    legacy = make(engine)
    legacy.run(
        "CREATE TABLE big (id BIGINT NOT NULL PRIMARY KEY, n INT, other INT)",
        "CREATE INDEX by_n ON big (n)",
    )
    legacy.insert("big", [(n, n % 1000, n % 1000) for n in range(5000)])
    legacy.run("UPDATE big SET n = 99999 WHERE id = 2345", "UPDATE big SET n = -5 WHERE id = 3456")
    legacy.analyze("big")
    with closing(legacy.connect().open()) as session:
        own = own_values_of(legacy.connect(), session)
        assert own is not None
        found = sample(own, session.describe(Relation("big", table="big")), 50)
    keys = {key[0] for key in found.keys or ()}
    assert {0, 4999, 2345, 3456} <= keys
    assert len(keys) < 100
    assert found.how == "from first to last key, by its index, and both ends of n"


def test_a_sample_by_index_scans_no_table(postgresql: PostgreSQL) -> None:
    legacy = OfPostgreSQL(postgresql)
    try:
        legacy.run(
            "CREATE TABLE big (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), t text, n numeric)",
            "INSERT INTO big SELECT gen_random_uuid(), repeat('x', 300), n"
            " FROM generate_series(1, 20000) n",
            "CREATE INDEX ON big (n)",
            "ANALYZE big",
        )
        found = _compared(legacy, Relation("big", table="big"), rows=200)
        assert not found.differs
        assert 100 <= found.rows <= 300
        with postgresql.superuser(legacy.database) as connection:
            if postgresql.release >= 15:  # an older server sends its counts by itself
                connection.execute("SELECT pg_stat_force_next_flush()")
            sql = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'big'"
            deadline = time.monotonic() + FLUSHED_S_MAX
            while (read := connection.execute(sql).fetchone() or (0, 0))[1] < found.rows:
                assert time.monotonic() < deadline, read
                time.sleep(0.05)
        assert read[0] <= 3, "of the statements that made it"
    finally:
        legacy.close()

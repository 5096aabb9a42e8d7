"""`benchmarks.reloads`: what counts as equal, and what a table of results says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as arrow
import pytest
from pyarrow import parquet

from benchmarks.reloads.comparison import Comparison
from benchmarks.reloads.contents import (
    Contents,
    UnequalError,
    columns,
    compare,
    of_files,
    of_source,
)
from benchmarks.reloads.lines import shape
from benchmarks.reloads.peers import Copy
from benchmarks.reloads.place import DATABASE, READER, Cost, Source
from benchmarks.reloads.results import BEFORE, LOAD, NOTHING, OURS, Measurement, Run, dump, updated
from tests.harness.servers import PostgreSQL

COLUMNS = {
    "k": "bigint",
    "n": "integer",
    "price": "numeric(15,2)",
    "day": "date",
    "code": "character(5)",
    "note": "character varying(20)",
}
ROWS = [
    (1, 7, Decimal("1.50"), date(1995, 1, 2), "ab", "x"),
    (2, None, Decimal("-0.07"), date(1, 1, 1), "", "a|b ü "),
    (2**62, -7, Decimal("9999999999999.99"), date(9999, 12, 31), "abcde", ""),
]


@pytest.fixture
def source(postgresql: PostgreSQL) -> Iterator[tuple[Contents, dict[str, str]]]:
    """What PostgreSQL holds of the rows, and the types that it says."""
    name = postgresql.create_database("reloads_contents")
    with postgresql.superuser(name) as connection:
        kinds = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        connection.execute(f"CREATE TABLE t ({kinds})")
        places = ", ".join(["%s"] * len(COLUMNS))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO t VALUES ({places})", ROWS)
        yield of_source(connection, "t"), columns(connection, "t")
    postgresql.drop_database(name)


def written(folder: Path, rows: list[tuple], price: pa.DataType) -> arrow.Dataset:
    """Return the rows in a file, as a tool might have written them: blanks filled, wider numbers,
    a column of its own."""
    kinds = [pa.int64(), pa.int32(), price, pa.date32(), pa.string(), pa.string()]
    values = [list(column) for column in zip(*rows, strict=True)]
    values[4] = [value.ljust(5) for value in values[4]]
    arrays = {
        name: pa.array(column, pa.decimal128(15, 2)).cast(kind)
        if name == "price" and all(one.as_tuple().exponent == -2 for one in column)
        else pa.array(column, kind)
        for name, column, kind in zip(COLUMNS, values, kinds, strict=True)
    }
    parquet.write_table(pa.table({"_load": pa.nulls(len(rows)), **arrays}), folder / "t.parquet")
    return arrow.dataset(folder / "t.parquet")


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_copy_equals_its_source_in_any_order(
    source: tuple[Contents, dict[str, str]], tmp_path: Path
) -> None:
    contents, types = source
    assert types == COLUMNS
    for price in (pa.decimal128(15, 2), pa.decimal128(38, 10)):
        for rows in (ROWS, ROWS[::-1]):
            compare("it", of_files(written(tmp_path, rows, price), types), contents)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, 3),
        (1, None),
        (1, 8),
        (2, Decimal("1.51")),
        (2, Decimal("1.5000000001")),
        (3, date(1995, 1, 3)),
        (4, "b"),
        (5, "x "),
        (5, None),
        (5, r"\N"),
    ],
)
def test_one_other_value_is_unequal(
    source: tuple[Contents, dict[str, str]], tmp_path: Path, column: int, value: object
) -> None:
    contents, types = source
    changed: list[object] = [*ROWS[0]]
    changed[column] = value
    files = written(tmp_path, [tuple(changed), *ROWS[1:]], pa.decimal128(38, 10))
    with pytest.raises(UnequalError, match=r"dlt wrote 3 rows with hash \w+, the source has 3"):
        compare("dlt", of_files(files, types), contents)


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_row_too_few_or_twice_is_unequal(
    source: tuple[Contents, dict[str, str]], tmp_path: Path
) -> None:
    contents, types = source
    for rows in (ROWS[1:], [*ROWS, ROWS[0]], [ROWS[0], *ROWS[:2]]):
        with pytest.raises(UnequalError):
            compare("it", of_files(written(tmp_path, rows, pa.decimal128(15, 2)), types), contents)


class Forgetful(Copy):
    """A reload that loses a row."""

    def reload(self, source: Source, folder: Path) -> tuple[Cost, Contents | int]:
        cost, rows = super().reload(source, folder)
        assert isinstance(rows, int)
        return cost, rows - 1


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_tool_that_is_wrong_ends_the_comparison(
    postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Source(postgresql, 0.001)
    try:
        right = Comparison(source, tmp_path, {}, [Copy()])
        assert right.measure("orders", [10], 2) == 1500
        steps = [NOTHING, updated(10)]
        assert [run.step for run in right.runs] == [LOAD, LOAD, *(s for s in steps for _ in "12")]
        assert all(run.cost.wall_s > 0 for run in right.runs)
        wrong = Comparison(source, tmp_path, {}, [Forgetful()])
        with pytest.raises(UnequalError, match="proven: copy wrote 1,499 rows"):
            wrong.measure("orders", [], 1)
        assert not wrong.runs
    finally:
        source.connection.close()
        postgresql.drop_database(DATABASE)
        with postgresql.superuser() as connection:
            connection.execute(f"DROP ROLE {READER}")


@pytest.mark.parametrize("name", ["100ms", "100ms,10", "-1ms,10mbit", "100ms,10mbit,"])
def test_what_is_no_line(name: str) -> None:
    assert shape("100ms,10mbit") == (100, 10)
    with pytest.raises(ValueError, match="nor like '100ms,10mbit'"):
        shape(name)


def run(step: str, tool: str, wall_s: float, source_cpu_s: float = 1.0) -> Run:
    return Run(
        "lineitem",
        step,
        tool,
        Cost(wall_s, 0.5, source_cpu_s),
        {"method": "sketch", "held_back_s": wall_s / 10},
    )


RUNS = [
    *(run(NOTHING, OURS, s) for s in (6.0, 4.0, 5.0)),
    *(run(NOTHING, "dlt", s) for s in (10.0, 8.0, 9.0)),
    run(LOAD, OURS, 20.0),
    run(updated(1), OURS, 12.0, 3.0),
    run(updated(1), "dlt", 9.0),
    run(updated(1), "copy", 2.0, 1.5),
    run(updated(10), OURS, 20.0),
    run(updated(10), BEFORE, 40.0),
]
MEASUREMENT = Measurement(
    table="lineitem",
    line="loopback",
    rows=3_000_000,
    rounds=3,
    machine="two cores",
    commit="abc",
    server="PostgreSQL 15",
    versions={"before": "Driftline def", "dlt": "dlt 1.31.0", "copy": "psql"},
    left_out={"spark": "no JDBC driver"},
    runs=RUNS,
)


def test_minimum_median_ratios_and_goals() -> None:
    head, _, *rest = MEASUREMENT.markdown().splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")]
    rows = [line for line in rest if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    nothing, load, one, ten = (dict(zip(names, row, strict=True)) for row in cells)
    assert nothing["lineitem, 3,000,000 rows, loopback"] == NOTHING
    assert nothing["driftline, s"] == "4.00; 5.00"
    assert nothing["dlt, s"] == "8.00; 9.00"
    assert nothing["÷ dlt"] == "0.50; 0.56"
    assert nothing["÷ spark"] == nothing["÷ copy's"] == "NOT MEASURED"
    assert nothing["goal"] == "≤ 0.6 × dlt: met, 0.56"
    assert load["goal"] == "≤ 1 × spark: NOT MEASURED"
    assert one["goal"] == "≤ 1.2 × dlt: MISSED, 1.33; ≤ 2 × the processor of copy: met, 1.50"
    assert ten["÷ before"] == "0.50; 0.50"
    assert ten["goal"] == "≤ 0.55 × before: met, 0.50"
    assert "- SPARK IS LEFT OUT: no JDBC driver" in rest
    assert any(line.startswith("- driftline: for up to 4.0 s of a run its") for line in rest)


def test_what_json_says() -> None:
    (found,) = json.loads(dump([MEASUREMENT]))
    assert len(found["runs"]) == len(RUNS)
    assert found["runs"][0]["cost"] == {"wall_s": 6.0, "cpu_s": 0.5, "source_cpu_s": 1.0}
    assert found["runs"][0]["report"] == {"method": "sketch", "held_back_s": 0.6}
    reached = {(goal["step"], goal["than"]): goal["reached"] for goal in found["goals"]}
    assert reached[NOTHING, "dlt"] == pytest.approx(5 / 9)
    assert (LOAD, "spark") not in reached

"""Rows of Spark become data files and rows again by Arrow: the same values as by Spark's files."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from driftline.errors import WarehouseUnavailable
from pyspark.sql import DataFrame, SparkSession

from warehouse_agent.columns.view_layout import ViewColumn, ViewLayout, ViewRecipe
from warehouse_agent.planning import task_shares
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.data_frames import ColumnRange, RowFunction, rows_by_tasks, rows_of
from warehouse_agent.tasks.scan import from_arrow, read_batches
from warehouse_agent.tasks.write import write_rows

pytestmark = pytest.mark.spark

VALUES = """
    SELECT CAST(NULL AS BOOLEAN) AS b, 1Y AS i1, 2S AS i2, 3 AS i4, 4L AS i8,
        CAST('NaN' AS FLOAT) AS f, -0.0D AS d, 1.25BD AS m, 'x' AS t, X'00ff' AS y,
        DATE '0001-01-01' AS date, TIMESTAMP '0001-01-01 00:00:00' AS ltz,
        TIMESTAMP_NTZ '0001-01-01 00:00:00.000001' AS ntz, 1L AS _driftline_k1
    UNION ALL SELECT true, -128Y, -32768S, -2147483648, -9223372036854775808L,
        CAST('-0.0' AS FLOAT), CAST('Infinity' AS DOUBLE), -9.99BD, '', X'',
        DATE '1582-10-04', TIMESTAMP '1582-10-04 23:59:59.999999',
        TIMESTAMP_NTZ '1900-01-01 00:00:00', 2L
    UNION ALL SELECT false, 127Y, 32767S, 2147483647, 9223372036854775807L,
        1.5F, CAST('NaN' AS DOUBLE), NULL, 'é€😀', NULL,
        DATE '9999-12-31', TIMESTAMP '9999-12-31 23:59:59.999999',
        TIMESTAMP_NTZ '9999-12-31 23:59:59.999999', 3L
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0BD, NULL, X'01', NULL,
        TIMESTAMP '2024-10-27 01:30:00', NULL, 4L
"""
TYPES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(3,2)",
    "string", "binary", "date", "timestamp", "timestamp_ntz",
]  # fmt: skip
NAMES = ["b", "i1", "i2", "i4", "i8", "f", "d", "m", "t", "y", "date", "ltz", "ntz"]
COMPARED = {
    "b": ["true"],
    "i4": ["3", "-2147483648"],
    "i8": ["4L", "9223372036854775807L"],
    "f": ["CAST('NaN' AS FLOAT)", "0.0F", "1.5F"],
    "d": ["CAST('NaN' AS DOUBLE)", "0.0D", "CAST('Infinity' AS DOUBLE)"],
    "m": ["1.25BD", "0BD"],
    "t": ["'x'", "''", "'é€😀'"],
    "y": ["X'00ff'", "X''"],
    "date": ["DATE '0001-01-01'", "DATE '1582-10-04'"],
    "ltz": ["TIMESTAMP '1582-10-04 23:59:59.999999'", "TIMESTAMP '2024-10-27 01:30:00'"],
    "ntz": ["TIMESTAMP_NTZ '0001-01-01 00:00:00.000001'", "TIMESTAMP_NTZ '1900-01-01 00:00:00'"],
}
LAYOUT = ViewLayout(
    tuple(map(ViewColumn, NAMES, TYPES)),
    (ViewColumn("_driftline_k1", "bigint"),),
    ViewRecipe("SELECT …", (), {}, "4"),
)
NUMBERS = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.string())])


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/St_Johns"])
def zoned(request: pytest.FixtureRequest, spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", request.param)
    return own


def files_in(folder: Path, *tables: pa.Table, group: int = 1000) -> list[DataFile]:
    made = []
    for number, table in enumerate(tables):
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=group, write_page_checksum=True)
        size = path.stat().st_size
        made.append(DataFile(path.name, f"file://{path}", size, len(table)))
    return made


def numbers(first: int, count: int) -> pa.Table:
    keys = range(first, first + count)
    return pa.table([[*keys], [f"a{k}" for k in keys], [f"b{k}" * 20 for k in keys]], NUMBERS.names)


@pytest.mark.parametrize("zoned", ["Europe/Berlin"], indirect=True)
def test_conditions_find_the_rows_that_they_mean(zoned: SparkSession, tmp_path: Path) -> None:
    """Spark's reader skips row groups by them, and the tasks' reader does not."""
    rows, made = zoned.sql(VALUES), list[DataFile]()
    for key in range(1, 5):
        folder = DataFolder(Store(str(tmp_path)), "v", f"data-{key}")
        row = rows.where(f"_driftline_k1 = {key}")
        made += write_rows(folder, row.crossJoin(zoned.range(40).select()).coalesce(1), LAYOUT)
    readers = {"skips": rows_of, "does not": rows_by_tasks}
    for name, literals in COMPARED.items():
        conditions = [
            f"{name} {condition.format(one)}"
            for one in literals
            for condition in (
                "= {0}",
                "<> {0}",
                "< {0}",
                "<= {0}",
                "> {0}",
                ">= {0}",
                "IN ({0}, {0})",
            )
        ]
        counts = ", ".join(f"count_if({one})" for one in conditions)
        found = {}
        for reader, read in readers.items():
            read(zoned, made, LAYOUT.file_schema).createOrReplaceTempView("read")
            each = (f"SELECT {n}, count(*) FROM read WHERE {c}" for n, c in enumerate(conditions))
            found[reader] = sorted(map(tuple, zoned.sql(" UNION ALL ".join(each)).collect()))
        assert found["skips"] == found["does not"], name
        (every,) = zoned.sql(f"SELECT {counts} FROM read").collect()
        assert [count for _, count in found["skips"]] == [*every], name


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_a_condition_on_zero_finds_rows_with_minus_zero(
    spark: SparkSession, tmp_path: Path, kind: pa.DataType
) -> None:
    """Whatever the row groups: their dictionaries and statistics hold the one or the other zero."""
    zeros = [[-0.0, 3.5, -12.25] * 100, [0.0, 3.5] * 100, [-0.0, 0.0] * 100, [-0.0] * 100]
    tables = [pa.table({"x": pa.array(some, kind)}) for some in [*zeros, [0.0] * 100, [1.5] * 100]]
    rows = rows_of(spark, files_in(tmp_path, *tables), tables[0].schema)
    found = sum(value == 0 for table in tables for value in table["x"].to_pylist())
    for zero in ("x = 0.0", "x = -0.0", "x IN (0.0, 7.0)", "x >= -0.0 AND x <= 0.0", "x <=> 0.0"):
        assert rows.where(zero.replace("0.0", "0.0D")).count() == found, zero
    assert rows.where("x <> 0.0D").count() == sum(map(len, tables)) - found
    assert rows.where("x < 0.0D").count() == 100
    assert rows.where("x > -0.0D").count() == 100 + 100 + 100


def texts(rows: DataFrame) -> list[str]:
    """Return rows by key, each value as the text that Spark makes of it."""
    shown = [f"hex({n})" if n == "y" else f"CAST({n} AS STRING)" for n in NAMES]
    found = rows.selectExpr("_driftline_k1", *shown).collect()
    return sorted(str([*row]) for row in found)


def test_values_are_those_of_sparks_own_files(zoned: SparkSession, tmp_path: Path) -> None:
    """Written by tasks and read by Spark's reader, written by Spark's writer and read by tasks."""
    rows = zoned.sql(VALUES)
    assert [field.dataType.simpleString() for field in rows.schema.fields][:-1] == TYPES
    expected = texts(rows)
    made = write_rows(DataFolder(Store(str(tmp_path)), "v", "data-x"), rows, LAYOUT)
    assert texts(rows_of(zoned, made, LAYOUT.file_schema)) == expected
    assert texts(rows_by_tasks(zoned, made, LAYOUT.file_schema)) == expected
    rows.coalesce(1).write.parquet(str(tmp_path / "spark"))
    (path,) = (tmp_path / "spark").glob("*.parquet")
    theirs = [DataFile(path.name, f"file://{path}", path.stat().st_size, 4)]
    assert texts(rows_by_tasks(zoned, theirs, LAYOUT.file_schema)) == expected


def test_types_are_those_of_the_table(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], LAYOUT.ddl)
    assert from_arrow(LAYOUT.file_schema) == empty.schema
    assert rows_by_tasks(spark, [], LAYOUT.file_schema).schema == empty.schema


def test_files_say_what_they_hold(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(VALUES)
    (made,) = write_rows(DataFolder(Store(str(tmp_path)), "v", "data-x"), rows.coalesce(1), LAYOUT)
    assert made.rows == 4
    assert made.not_null == {"ltz", "_driftline_k1"}
    assert made.path.startswith("data-x/part-")


def test_no_rows_are_no_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(VALUES).where("i8 = 5")
    assert write_rows(DataFolder(Store(str(tmp_path)), "v", "data-x"), rows, LAYOUT) == []


def test_a_large_file_is_read_by_several_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path, numbers(0, 1000), numbers(1000, 10), group=90)
    monkeypatch.setattr(task_shares, "TASK_BYTES", files[0].size // 3)
    monkeypatch.setattr(task_shares, "OPEN_BYTES", 1)
    rows = rows_by_tasks(spark, files, NUMBERS)
    assert rows.rdd.getNumPartitions() >= 3
    assert sorted(rows.toArrow()["k"].to_pylist()) == [*range(1010)]


def test_row_groups_without_a_wanted_value_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = files_in(tmp_path, numbers(0, 1000), group=100)
    found = rows_by_tasks(spark, files, NUMBERS, ranges=[ColumnRange("k", 250, 310)])
    assert sorted(found.toArrow()["k"].to_pylist()) == [*range(200, 400)]
    for one in (ColumnRange("k", 1000, None), ColumnRange("k", None, -1)):
        assert rows_by_tasks(spark, files, NUMBERS, ranges=[one]).count() == 0


def test_a_function_makes_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    files = files_in(tmp_path, numbers(0, 1000))
    schema = pa.schema([("twice", pa.int64())])

    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        even = batch.filter(pc.equal(pc.bit_wise_and(batch["k"], 1), 0))
        return pa.record_batch([pc.multiply(even["k"], 2)], schema=schema)

    rows = rows_by_tasks(spark, files, NUMBERS, then=RowFunction(twice, schema))
    assert sorted(rows.toArrow()["twice"].to_pylist()) == [4 * k for k in range(500)]


@pytest.mark.parametrize("size", [0, 10_000, 100 << 20, 50 << 30])
def test_spark_knows_the_size_of_rows(spark: SparkSession, size: int, tmp_path: Path) -> None:
    """By it Spark decides to send a table to every task: a large one must never seem small."""
    files = [DataFile(str(n), f"file://{tmp_path}/{n}", size // 4, size) for n in range(4)]
    plan = rows_by_tasks(spark, files, NUMBERS)._jdf.queryExecution().optimizedPlan()
    estimate = int(str(plan.stats().sizeInBytes()))
    assert min(size, 8 << 30) * 0.9 <= estimate <= max(size, 1000)


def test_a_file_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    files = files_in(tmp_path, numbers(0, 10))
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(WarehouseUnavailable, match=r"0\.parquet cannot be read"), driver_errors():
        rows_by_tasks(spark, files, NUMBERS).toArrow()


def test_only_wanted_columns_are_fetched(tmp_path: Path) -> None:
    """The bytes that a task reads are those of its columns, a footer and little more."""
    (file,) = files_in(tmp_path, numbers(0, 200_000), group=50_000)
    footer = pq.read_metadata(file.uri.removeprefix("file://"))
    groups = map(footer.row_group, range(footer.num_row_groups))
    wanted = sum(group.column(0).total_compressed_size for group in groups)

    def fetched() -> int:
        return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])

    before = fetched()
    assert sum(map(len, read_batches(file.uri, pa.schema([NUMBERS.field("k")])))) == 200_000
    assert fetched() - before < 1.2 * wanted + 100_000

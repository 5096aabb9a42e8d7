"""Columns of Parquet are what Parquet says they are, whoever wrote them; no value is changed."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline import errors
from hypothesis import given
from hypothesis import strategies as st

from tests.source_agent.engines.dump.folders import Accounts
from tests.source_agent.engines.dump.test_reads import NO_FIXTURE

ONE_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
MICROS = 10**6


def put(folder: Path, types: dict[str, str], table: pa.Table | None = None, **how: Any) -> Accounts:
    columns = "\n".join(f'{name} = "{type}"' for name, type in types.items())
    accounts = Accounts(folder, f'kind = "parquet"\n[columns]\n{columns}\n')
    if table is not None:
        pq.write_table(table, folder / "a-1.parquet", **how)
    return accounts


def json_of(texts: list[str]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))


def uuids(values: list[bytes]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


OWN = (
    ("dictionary", pa.array(["é"]).dictionary_encode(), "text", "é"),
    ("integer dictionary", pa.array([7]).dictionary_encode(), "int8", "7"),
    ("string view", pa.array(["é"], pa.string_view()), "text", "é"),
    ("binary view", pa.array([b"\xff"], pa.binary_view()), "bytea", "ff"),
    ("text that is not said to be", pa.array(["é".encode()]), "text", "é"),
    ("fixed", pa.array([b"\0\xff"], pa.binary(2)), "bytea", "00ff"),
    ("uint64", pa.array([2**64 - 1], pa.uint64()), "numeric(20,0)", "18446744073709551615"),
    ("decimal32", pa.array([Decimal("-1.50")], pa.decimal32(5, 2)), "numeric(5,2)", "-1.50"),
    ("decimal256", pa.array([Decimal(10**49)], pa.decimal256(50, 0)), "numeric", f"{10**49}"),
    ("time", pa.array([dt.time(23, 59, 59, 999999)]), "time", "23:59:59.999999"),
    ("time of ns", pa.array([1000], pa.time64("ns")), "time", "00:00:00.000001"),
    ("time of ms", pa.array([1], pa.time32("ms")), "time", "00:00:00.001"),
    ("uuid", uuids([ONE_UUID.bytes]), "uuid", str(ONE_UUID)),
    ("json", json_of(['{"a": 1}']), "text", '{"a": 1}'),
    ("duration", pa.array([5], pa.duration("us")), "int8", "5"),
    ("date64", pa.array([86_400_000], pa.date64()), "date", "1970-01-02"),
    ("nothing", pa.nulls(1), "timestamptz", None),
)  # fmt: skip


@pytest.mark.parametrize(("array", "type", "value"), [o[1:] for o in OWN], ids=[o[0] for o in OWN])
def test_a_column_is_what_parquet_says(tmp_path: Path, array: Any, type: str, value: str) -> None:
    for how in ({"store_schema": True}, {"store_schema": False}):
        table = pa.table({"id": pa.array([1], pa.int64()), "v": array})
        assert put(tmp_path, {"id": "int8", "v": type}, table, **how).read() == [["1", value]]


def test_a_column_that_is_not_asked_for_may_be_of_any_type(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1]), "v": pa.array([[1]]), "w": pa.array(["x"])})
    accounts = put(tmp_path, {"id": "int8", "v": "text", "w": "text"}, table)
    with pytest.raises(errors.ConfigurationError, match=r"'v' of .* is nested") as caught:
        accounts.read()
    assert "`columns`" in (caught.value.remedy or "")
    accounts.choose(("id", "w"))
    assert accounts.read() == [["1", "x"]]


def test_duckdb_writes_infinity(tmp_path: Path) -> None:
    kinds = ("timestamp", "timestamptz", "date", "timestamp_ms", "timestamp_ns")
    types = {"id": "int8"}
    types |= {f"c{i}": k.partition("_")[0] for i, k in enumerate(kinds)}
    accounts = put(tmp_path, types)
    rows = [
        ", ".join([str(n), *(f"'{text}'::{kind} AS c{i}" for i, kind in enumerate(kinds))])
        for n, text in enumerate(("infinity", "-infinity", "2024-02-29 00:00:00"))
    ]
    query = " UNION ALL ".join(f"SELECT {row}" for row in rows).replace(
        "SELECT 0", "SELECT 0 AS id"
    )
    duckdb.sql(
        f"COPY (SELECT id::bigint AS id, * EXCLUDE id FROM ({query})) TO '{tmp_path}/a-1.parquet'"
    )
    found = accounts.read()
    assert found[0] == ["0", *["infinity"] * 5]
    assert found[1] == ["1", *["-infinity"] * 5]
    assert all(str(value).startswith("2024-02-29") for value in found[2][1:])


def test_other_writers_mean_what_they_write(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "t": pa.array([2**63 - 1], pa.timestamp("us"))})
    accounts = put(tmp_path, {"id": "int8", "t": "timestamp"}, table)
    assert accounts.read() == [["1", "294247-01-10 04:00:54.775807"]]


@pytest.mark.parametrize("type", ["timestamp", "timestamptz"])
@pytest.mark.parametrize(
    "text", ["0001-01-01", "1582-10-04", "1677-01-01", "2262-12-31", "9999-12-31"]
)
def test_instants_of_96_bits(tmp_path: Path, type: str, text: str) -> None:
    at = dt.datetime.fromisoformat(text).replace(hour=23, microsecond=999_999)
    table = pa.table({"id": [1, 2], "t": pa.array([at, None], pa.timestamp("us"))})
    accounts = put(tmp_path, {"id": "int8", "t": type}, table, use_deprecated_int96_timestamps=True)
    zone = "+00" if type == "timestamptz" else ""
    assert accounts.read() == [["1", f"{at}{zone}"], ["2", None]]


def test_a_time_beyond_the_day_is_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "t": pa.array([-1], pa.int64()).cast(pa.time64("us"))})
    with pytest.raises(errors.ValueDoesNotFit, match="row 1 of the file"):
        put(tmp_path, {"id": "int8", "t": "time"}, table).read()


def test_nanoseconds_in_96_bits_are_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "t": pa.array([1_001], pa.timestamp("ns"))})
    accounts = put(
        tmp_path, {"id": "int8", "t": "timestamp"}, table, use_deprecated_int96_timestamps=True
    )
    with pytest.raises(errors.ValueDoesNotFit, match="no whole microsecond"):
        accounts.read()


def ends(least: int, greatest: int) -> st.SearchStrategy[int]:
    ends = [n for n in (least, least + 1, -1, 0, 1, greatest - 1, greatest) if n >= least]
    return st.sampled_from(ends) | st.integers(least, greatest)


@NO_FIXTURE
@given(
    st.lists(
        st.tuples(
            ends(0, 2**64 - 1),
            ends(-62_135_596_800 * MICROS, 253_402_300_799 * MICROS + 999_999),
            ends(-719_162, 2_932_896),
            ends(0, 86_400 * MICROS - 1),
            st.decimals(places=3, min_value=-(10**34), max_value=10**34),
            st.binary(min_size=16, max_size=16),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_values_at_limits_are_those_of_arrow(tmp_path: Path, rows: Any) -> None:
    """More than 20,000 values in a soak."""
    big, us, days, clock, decimals, raw = (list(column) for column in zip(*rows, strict=True))
    table = pa.table(
        {
            "big": pa.array(big, pa.uint64()),
            "t": pa.array(us, pa.timestamp("us")),
            "d": pa.array(np.array(days, np.int32)).cast(pa.date32()),
            "c": pa.array(clock, pa.time64("us")),
            "n": pa.array(decimals, pa.decimal128(38, 3), from_pandas=False),
            "u": uuids(raw),
        }
    )
    types = {
        "big": "numeric(20,0)", "t": "timestamp", "d": "date", "c": "time", "n": "numeric(38,3)",
        "u": "uuid",
    }  # fmt: skip
    accounts = put(tmp_path, types, table)
    accounts.key(tuple(types))
    found = accounts.read()
    assert len(found) == len(rows)
    for row, (a, b, c, d, e, f) in zip(found, table_rows(table), strict=True):
        assert [row[0], row[2], row[4], row[5]] == [
            str(a),
            str(c),
            f"{e if e else abs(e):.3f}",
            str(f),
        ]
        assert dt.datetime.fromisoformat(str(row[1])) == b
        assert dt.time.fromisoformat(str(row[3])) == d


def table_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

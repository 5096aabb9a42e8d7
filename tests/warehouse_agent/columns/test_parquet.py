"""What readers may use to skip rows of a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warehouse_agent.columns import parquet
from warehouse_agent.columns.layout import HI, RATE, UPDATES

FEW = pa.table(
    {
        "id": pa.array([1, 2, 3] * 50, pa.int64()),
        "real": pa.array([-0.0, 1.5, float("nan")] * 50, pa.float64()),
        "single": pa.array([-0.0, 1.5, None] * 50, pa.float32()),
        "name": ["a", "b", None] * 50,
        HI: pa.array([1, 2, 3] * 50, pa.int64()),
        UPDATES: pa.array([0, 0, 1] * 50, pa.int32()),
        RATE: pa.array([0.0, 0.5, 0.0] * 50, pa.float32()),
    }
)


@pytest.mark.parametrize("repeated", [None, ["real", "name", RATE]])
def test_floats_have_nothing_by_which_zeros_or_nan_are_skipped(
    tmp_path: Path, repeated: list[str] | None
) -> None:
    """−0.0 equals 0.0 and NaN is the greatest number, but not in dictionaries and bounds."""
    path = str(tmp_path / "few.parquet")
    with parquet.writer(path, FEW.schema, repeated=repeated) as file:
        file.write_table(FEW)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    bounded = [one.path_in_schema for one in columns if one.is_stats_set]
    encoded = [one.path_in_schema for one in columns if one.has_dictionary_page]
    assert bounded == ["id", "name", UPDATES]
    assert encoded == (["id", "name", HI, UPDATES, RATE] if repeated is None else ["name", RATE])
    assert pq.read_table(path)["name"].equals(FEW["name"])

"""Arrow's way to row bytes is the contract's, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from driftline.rows import columns
from driftline.rows.columns import RaggedColumn
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.columns import row_bytes

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=20)


def ragged(values: list[bytes | None]) -> RaggedColumn:
    lengths = np.array([-1 if v is None else len(v) for v in values], np.int32)
    return RaggedColumn(lengths, np.frombuffer(b"".join(v or b"" for v in values), np.uint8))


@given(st.data(), VALUES)
def test_join(data: st.DataObject, first: list[bytes | None]) -> None:
    same = st.lists(
        st.one_of(st.none(), st.binary(max_size=9)), min_size=len(first), max_size=len(first)
    )
    parts = [ragged(first), *(ragged(v) for v in data.draw(st.lists(same, max_size=4)))]
    assert row_bytes.join(parts).rows() == columns.join(parts).rows()


def test_beyond_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [ragged([b"abc", None, b""])]
    monkeypatch.setattr(row_bytes, "_ARROW_BYTES_MAX", 10)
    assert row_bytes.join(parts).rows() == columns.join(parts).rows()

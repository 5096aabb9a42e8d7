"""The line is reset at bytes all over a refresh: twenty here, 200 by the soak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cuts import OFFSETS, CutRig, offsets

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CutRig]:
    with CutRig(tmp_path) as made:
        yield made


@pytest.mark.parametrize("count", [20, pytest.param(OFFSETS, marks=pytest.mark.soak)])
def test_a_cut_costs_a_comparison_and_a_frame(rig: CutRig, count: int) -> None:
    usual = rig.fault_free()
    assert usual.frames > 3 * usual.frame_max, "what was staged must be worth something"
    for offset in offsets(usual, count):
        rig.cut(usual, **offset)
    assert not rig.strays()

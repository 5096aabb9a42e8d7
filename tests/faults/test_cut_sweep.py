"""The line is reset at bytes all over a refresh: a few here, 200 on each engine by the soak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cuts import OFFSETS, CutRig, offsets
from tests.harness.legacy import LEGACIES

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CutRig]:
    with CutRig(LEGACIES[request.param](request, tmp_path), tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("rig", "count"),
    [
        ("sqlite", 5),
        ("postgresql", 3),
        pytest.param("sqlite", OFFSETS, marks=pytest.mark.soak),
        pytest.param("postgresql", OFFSETS, marks=pytest.mark.soak),
    ],
    indirect=["rig"],
)
def test_a_cut_costs_a_comparison_and_a_frame(rig: CutRig, count: int) -> None:
    """The comparison is small here, and within the tenth that a refresh may send again."""
    usual = rig.fault_free()
    assert usual.frames > 3 * usual.frame_max, "what was staged must be worth something"
    for offset in offsets(usual, count):
        rig.cut(usual, **offset)
    assert not rig.strays()

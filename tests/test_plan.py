"""Decisions of a refresh: coarsening, full copies, partitions, the guard against shrinking."""

from __future__ import annotations

import math

import pytest
from driftline.digests import Digest
from driftline.limits import RANGES_MAX, ROW_HASHES_MAX
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.plan import Method, choose, partition_for, rows_changed, shrank


def cost(n: int, ranges: int, differing: int, by: int) -> float:
    """Bytes of digests and row hashes at a coarsening, by the definition."""
    share = 1 - (1 - differing / ranges) ** (2**by)
    return 8 * math.ceil(ranges / 2**by) + 8 * n * share


@given(st.integers(1_000, 5_000_000), st.integers(2, RANGES_MAX), st.floats(0.00001, 0.05))
def test_range_coarsens_to_the_cheapest(n: int, ranges: int, share: float) -> None:
    differing = max(int(ranges * share), 1)
    total = Digest(n, 1)
    choice = choose(
        ours=total,
        theirs=Digest(n, 2),
        ranges=ranges,
        differing=differing,
        row_bytes=1e9,
        forced=Method.RANGE,
    )
    assert choice.method is Method.RANGE
    found = cost(n, ranges, differing, choice.coarsen)
    assert found <= 1.001 * min(cost(n, ranges, differing, by) for by in range(19)) + 8


def test_everything_when_everything_changed() -> None:
    n = 1_000_000
    choice = choose(
        ours=Digest(n, 1),
        theirs=Digest(n, 2),
        ranges=250_000,
        differing=250_000,
        row_bytes=24,
        forced=None,
    )
    assert choice.method is Method.FULL
    assert choice.bytes_expected == 24 * n


def test_too_many_row_hashes_is_everything() -> None:
    n = 40 * ROW_HASHES_MAX
    choice = choose(
        ours=Digest(n, 1),
        theirs=Digest(n, 2),
        ranges=RANGES_MAX,
        differing=RANGES_MAX // 2,
        row_bytes=1000,
        forced=Method.RANGE,
    )
    assert choice.method is Method.FULL


def test_forced_full() -> None:
    choice = choose(
        ours=Digest(10, 1),
        theirs=Digest(10, 2),
        ranges=2,
        differing=1,
        row_bytes=1,
        forced=Method.FULL,
    )
    assert choice.method is Method.FULL


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=65), st.integers(0, 10**9))
def test_partitions_are_bounded(quantiles: list[int], rows: int) -> None:
    for integer_key in (True, False):
        partition = partition_for(sorted(quantiles), rows, integer_key=integer_key)
        assert 1 <= partition.ranges <= RANGES_MAX


def test_rows_changed_inverts_the_share_of_ranges() -> None:
    ranges, changed = 10_000, 3_000
    differing = round(ranges * (1 - math.exp(-changed / ranges)))
    assert rows_changed(differing, ranges) == pytest.approx(changed, rel=0.01)
    assert rows_changed(ranges, ranges) == rows_changed(ranges * 97 // 100, ranges)


@pytest.mark.parametrize(
    ("before", "after", "refused"), [(10, 5, False), (10, 4, True), (0, 0, False)]
)
def test_shrank(before: int, after: int, refused: bool) -> None:
    assert shrank(before, after) is refused

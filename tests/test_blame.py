"""A proof that fails names the link that broke, whatever the rows are."""

from __future__ import annotations

from dataclasses import replace

from driftline.digests import Digest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.blame import Parts, broken

SUMS = st.builds(Digest, st.integers(0, 1000), st.integers(0, 2**128 - 1))
ROW = Digest(1, 12345)


def sound(came: Digest, stayed: Digest, gone: Digest) -> Parts:
    """All links hold."""
    return Parts(
        theirs=came + stayed,
        ours=stayed + gone,
        came=came,
        shipped=came,
        stayed=stayed,
        gone=gone,
    )


@given(SUMS, SUMS, SUMS)
def test_where_all_links_hold_the_values_are_to_blame(
    came: Digest, stayed: Digest, gone: Digest
) -> None:
    assert "the values in the files" in broken(sound(came, stayed, gone))


@given(SUMS, SUMS, SUMS, st.booleans())
def test_each_link(came: Digest, stayed: Digest, gone: Digest, is_known: bool) -> None:
    parts = sound(came + ROW, stayed, gone if is_known else Digest())
    lost = replace(parts, stayed=stayed + ROW)
    assert "written again" in broken(lost)
    # Nothing is known of what gave way: what stayed too much is found in the sum.
    assert "should have given way" in broken(replace(lost, gone=None))
    assert "not written as they came" in broken(replace(parts, shipped=came))
    # Of a pass it is not kept what came.
    assert "should have given way" in broken(replace(parts, came=Digest(), shipped=came))
    assert "should have given way" in broken(replace(parts, theirs=parts.theirs + ROW))


@given(SUMS, SUMS, SUMS, st.integers(1, 2**128 - 1))
def test_a_row_that_kept_its_hashes(came: Digest, stayed: Digest, gone: Digest, other: int) -> None:
    """As many rows, and another sum: one that stayed has another value at the source."""
    parts = sound(came, stayed, gone)
    assert "2^32" not in broken(parts)
    assert "2^32" in broken(replace(parts, theirs=parts.theirs + Digest(0, other)))


def test_rows_are_counted() -> None:
    parts = sound(Digest(2, 5), Digest(3, 6), Digest(4, 7))
    assert parts.counted() == "theirs 5, ours 7, came 2, shipped 2, stayed 3, gone 4"
    assert "gone" not in replace(parts, gone=None).counted()


def test_nothing_came() -> None:
    parts = replace(sound(Digest(), Digest(3, 6), ROW), theirs=Digest(2, 6))
    assert "should have given way" in broken(parts)

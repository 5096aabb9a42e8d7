"""A proof that fails names the link that broke, whatever the rows are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from driftline.reconciliation.sketches import PRIME
from driftline.rows.digests import Digest, MixedFingerprints
from hypothesis import assume, given
from hypothesis import strategies as st

from warehouse_agent.planning.proof_diagnosis import (
    StepDigests,
    diagnose,
    is_missed_update,
    reads_differ,
)

SUMS = st.builds(Digest, st.integers(0, 1000), st.integers(0, 2**128 - 1))
ROW = Digest(1, 12345)


def sound(came: Digest, stayed: Digest, gone: Digest) -> StepDigests:
    """All links hold."""
    return StepDigests(
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
    assert "the values in the files" in diagnose(sound(came, stayed, gone))


@given(SUMS, SUMS, SUMS, st.booleans())
def test_each_link(came: Digest, stayed: Digest, gone: Digest, is_known: bool) -> None:
    parts = sound(came + ROW, stayed, gone if is_known else Digest())
    lost = replace(parts, stayed=stayed + ROW)
    assert "written again" in diagnose(lost)
    # Nothing is known of what gave way: what stayed too much is found in the sum.
    assert "should have been replaced" in diagnose(replace(lost, gone=None))
    assert "not written as they came" in diagnose(replace(parts, shipped=came))
    # Of a pass it is not kept what came.
    assert "should have been replaced" in diagnose(replace(parts, came=Digest(), shipped=came))
    others = replace(parts, theirs=parts.theirs + ROW)
    assert "should have been replaced" in diagnose(others)
    assert reads_differ(others)
    assert not reads_differ(lost)
    assert not reads_differ(parts)


def digest(m0: int, m1: int) -> Digest:
    return MixedFingerprints(np.array([m0], np.uint64), np.array([m1], np.uint64)).digest()


@given(SUMS, SUMS, SUMS, *[st.integers(0, 2**64 - 1)] * 3, st.data())
def test_an_update_that_the_cells_do_not_show(
    came: Digest, stayed: Digest, gone: Digest, m0: int, m1: int, after: int, data: st.DataObject
) -> None:
    """A row that stayed has another value at the source, with the same element of the field."""
    steps = (2**64 - 1 - m0 % (PRIME - 1)) // (PRIME - 1)
    like_it = m0 % (PRIME - 1) + data.draw(st.integers(0, steps)) * (PRIME - 1)
    before = digest(m0, m1)
    assume(before != digest(like_it, after))
    parts = sound(came, stayed + before, gone)
    assert not is_missed_update(parts)
    found = replace(parts, theirs=came + stayed + digest(like_it, after))
    assert is_missed_update(found)
    assert not reads_differ(found)
    assert "one changed row was taken for an unchanged one" in diagnose(found)
    # Where another link broke, nothing of it is to be built on.
    assert not is_missed_update(replace(found, ours=found.ours + ROW))
    assert not is_missed_update(replace(found, theirs=found.theirs + ROW))
    if came.count:
        assert not is_missed_update(replace(found, came=came + ROW))


@pytest.mark.parametrize("change", [1, 2**32, PRIME, PRIME + 1, 2**63])
@given(came=SUMS, stayed=SUMS, gone=SUMS)
def test_other_values_are_not_explained(
    came: Digest, stayed: Digest, gone: Digest, change: int
) -> None:
    parts = sound(came, stayed, gone)
    found = replace(parts, theirs=parts.theirs + Digest(0, change << 64))
    assert not is_missed_update(found)
    assert diagnose(found) == "as many rows as the source has, but not the same"


def test_rows_are_counted() -> None:
    parts = sound(Digest(2, 5), Digest(3, 6), Digest(4, 7))
    assert parts.counted() == "theirs 5, ours 7, came 2, shipped 2, stayed 3, gone 4"
    assert "gone" not in replace(parts, gone=None).counted()


def test_nothing_came() -> None:
    parts = replace(sound(Digest(), Digest(3, 6), ROW), theirs=Digest(2, 6))
    assert "should have been replaced" in diagnose(parts)

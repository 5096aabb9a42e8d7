"""Both sides cut the same rows alike, and a change stays in its chunk (protocol, section 7)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from driftline.arrays import U64, Integers
from driftline.reconciliation.chunks import ChunkSums
from driftline.rows.digests import MixedFingerprints, Salt, mix
from hypothesis import given
from hypothesis import strategies as st

SHIFT = 12


def rows(count: int, seed: int, largest: int = 200) -> tuple[Integers, MixedFingerprints]:
    """Return the sizes and mixed fingerprints of random rows."""
    rng = np.random.default_rng(seed)
    lanes = rng.integers(0, 1 << 63, (2, count)).astype(np.uint64)
    return rng.integers(1, largest, count), mix(Salt(seed, 7), *lanes)


def cut(sizes: Integers, mixed: MixedFingerprints, at: list[int]) -> list[tuple[int, int]]:
    """Return the end and the digest of each chunk of rows that come in batches which end `at`."""
    sums, first = ChunkSums(SHIFT), 0
    found: list[tuple[int, int]] = []
    for end in [*at, len(sizes)]:
        part = MixedFingerprints(mixed.m0[first:end], mixed.m1[first:end])
        ends, digests = sums.add(sizes[first:end], part)
        found += zip((ends + first).tolist(), digests.tolist(), strict=True)
        first = end
    return found


def expected(sizes: Integers, mixed: MixedFingerprints) -> list[tuple[int, int]]:
    """Return the same, row by row as the page says it."""
    total = 0
    found: list[tuple[int, int]] = []
    for i, (size, m0, m1) in enumerate(zip(sizes, mixed.m0, mixed.m1, strict=True)):
        total = (total + int(m0)) % (1 << 64)
        if int(m1) >> 32 < min(int(size), 1 << SHIFT) << (32 - SHIFT):
            found.append((i + 1, total))
            total = 0
    return found


@given(st.integers(0, 400), st.integers(0, 99), st.sampled_from([20, 200, 9000]), st.data())
def test_batches_do_not_matter(count: int, seed: int, largest: int, data: st.DataObject) -> None:
    sizes, mixed = rows(count, seed, largest)
    at = sorted(data.draw(st.lists(st.integers(0, count), max_size=5)))
    assert cut(sizes, mixed, at) == expected(sizes, mixed)


def test_a_large_row_ends_a_chunk() -> None:
    sizes, mixed = rows(50, 1)
    sizes[:] = 1 << SHIFT
    assert [end for end, _ in cut(sizes, mixed, [])] == list(range(1, 51))


@pytest.mark.parametrize("largest", [40, 200, 2000])
def test_chunks_have_their_size_in_the_mean(largest: int) -> None:
    sizes, mixed = rows(200_000, 3, largest)
    assert len(cut(sizes, mixed, [])) == pytest.approx(sizes.sum() / (1 << SHIFT), rel=0.1)


@given(st.integers(0, 999))
def test_a_change_stays_in_its_chunk(seed: int) -> None:
    """An update, an insert or a delete changes the digests of two chunks at most."""
    sizes, mixed = rows(2000, 5)
    rng = random.Random(seed)
    at, how = rng.randrange(len(sizes)), rng.choice(["update", "insert", "delete"])
    new_size, new = rows(1, 1000 + seed)
    before, after = (at, at + (how != "insert")) if how != "delete" else (at, at + 1)
    middle: tuple[Integers, U64, U64] = (new_size, new.m0, new.m1)
    if how == "delete":
        middle = (new_size[:0], new.m0[:0], new.m1[:0])
    lanes = (sizes, mixed.m0, mixed.m1)
    changed, m0, m1 = (
        np.concatenate([lane[:before], part, lane[after:]])
        for lane, part in zip(lanes, middle, strict=True)
    )
    ours = {digest for _, digest in cut(sizes, mixed, [])}
    theirs = {digest for _, digest in cut(changed, MixedFingerprints(m0, m1), [])}
    assert len(ours - theirs) <= 2
    assert len(theirs - ours) <= 2


def test_rows_that_are_not_known_begin_a_chunk() -> None:
    sizes, mixed = rows(500, 9)
    whole, sums = cut(sizes, mixed, []), ChunkSums(SHIFT)
    sums.add(sizes[:100], MixedFingerprints(mixed.m0[:100], mixed.m1[:100]))
    sums.begin()
    first = next(end for end, _ in whole if end > 100)
    rest = MixedFingerprints(mixed.m0[first:], mixed.m1[first:])
    _, digests = sums.add(sizes[first:], rest)
    assert digests.tolist() == [digest for end, digest in whole if end > first]

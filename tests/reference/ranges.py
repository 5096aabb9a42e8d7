"""The reference for protocol section 7: ranges of positions, and the strata over them.

A partition is a list of segments (start, shift). A range's number is found by counting the ranges
before it, segment by segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.digests import xx

FIRST, LAST = -(2**63), 2**63 - 1
CELLS = 32

Segments = Sequence[tuple[int, int]]


def segments_with_ends(segments: Segments) -> list[tuple[int, int, int]]:
    """(start, end, shift); the end is exclusive."""
    starts = [start for start, _ in segments]
    assert starts[0] == FIRST
    assert starts == sorted(set(starts))
    ends = [*starts[1:], LAST + 1]
    return [(a, b, shift) for (a, shift), b in zip(segments, ends, strict=True)]


def ranges_in(start: int, end: int, shift: int) -> int:
    size = 2**shift
    return (end - start) // size + (1 if (end - start) % size else 0)


def count(segments: Segments) -> int:
    return sum(ranges_in(*segment) for segment in segments_with_ends(segments))


def index(segments: Segments, position: int) -> int:
    """The number of the range that holds the position."""
    before = 0
    for start, end, shift in segments_with_ends(segments):
        if start <= position < end:
            return before + (position - start) // 2**shift
        before += ranges_in(start, end, shift)
    raise AssertionError("every position has a range")


def bounds(segments: Segments, index: int) -> tuple[int, int]:
    """First and last position of a range, both inclusive."""
    before = 0
    for start, end, shift in segments_with_ends(segments):
        here = ranges_in(start, end, shift)
        if index < before + here:
            first = start + (index - before) * 2**shift
            return first, min(first + 2**shift, end) - 1
        before += here
    raise AssertionError("no such range")


def coarse(index: int, by: int) -> int:
    return index // 2**by


def coarse_count(ranges: int, by: int) -> int:
    return len({coarse(i, by) for i in range(ranges)})


def strata_of(slots: int) -> int:
    count = 1
    while 2**count <= slots // CELLS:
        count += 1
    return count


def stratum_and_cell(index: int, s0: int, count: int) -> tuple[int, int]:
    x = xx(index, s0)
    zeros = 0
    while zeros < count - 1 and x % 2 ** (zeros + 1) == 0:
        zeros += 1
    return zeros, (x // 2**48) % CELLS


def strata(short_digests: Sequence[int], s0: int) -> list[list[int]]:
    """The cells of every stratum, modulo 2^8."""
    count = strata_of(len(short_digests))
    cells = [[0] * CELLS for _ in range(count)]
    for i, digest in enumerate(short_digests):
        stratum, cell = stratum_and_cell(i, s0, count)
        cells[stratum][cell] = (cells[stratum][cell] + digest) % 2**8
    return cells

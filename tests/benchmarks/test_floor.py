"""benchmarks.floor against brute force on tiny inputs."""

from __future__ import annotations

import itertools
import math

import pytest
import zstandard

from benchmarks.floor import compressed_bytes, floor_bytes, log2_choose


@pytest.mark.parametrize("rows", range(9))
def test_choices_are_counted_as_by_hand(rows):
    for changed in range(rows + 1):
        ways = len(list(itertools.combinations(range(rows), changed)))
        assert log2_choose(rows, changed) == pytest.approx(math.log2(ways), abs=1e-9)


def test_large_numbers_agree_with_whole_number_arithmetic():
    for rows, changed in [(750_000, 7_500), (3_000, 1_500), (100_000, 1), (100_000, 99_999)]:
        ways = math.comb(rows, changed)
        spare = max(ways.bit_length() - 64, 0)  # math.log2 takes no more than a double holds
        assert log2_choose(rows, changed) == pytest.approx(math.log2(ways >> spare) + spare)


@pytest.mark.parametrize(("rows", "changed"), [(3, 4), (3, -1), (-1, 0)])
def test_impossible_choices_are_refused(rows, changed):
    with pytest.raises(ValueError, match="rows"):
        log2_choose(rows, changed)


def test_no_change_costs_nothing():
    assert floor_bytes([], rows=1_000_000, changed=0) == 0
    assert floor_bytes([], rows=0, changed=0) == 0


def test_deleted_rows_cost_only_their_places():
    # 3 of 8 rows: 56 ways, 5.8 bits, one byte.
    assert floor_bytes([], rows=8, changed=3) == 1
    assert floor_bytes([], rows=300, changed=2) == math.ceil(math.log2(300 * 299 / 2) / 8)


def test_rows_cost_what_one_zstd_stream_does():
    lines = [b'%d,"text %d"\n' % (n, n * n) for n in range(200)]
    whole = zstandard.ZstdCompressor(level=19).compress(b"".join(lines))
    assert compressed_bytes(lines) == pytest.approx(len(whole), abs=16)  # the header says no size
    assert compressed_bytes(iter(lines)) == compressed_bytes(lines)
    assert len(zstandard.ZstdDecompressor().decompressobj().decompress(whole)) == sum(
        map(len, lines)
    )


def test_the_floor_is_the_sum_of_both_parts():
    lines = [b"1,a\n", b"2,b\n"]
    ways = len(list(itertools.combinations(range(10), 3)))
    expected = compressed_bytes(lines) + math.ceil(math.log2(ways) / 8)
    assert floor_bytes(lines, rows=10, changed=3) == expected

"""Ranges: the verdict measures what differs, and digests refine it to rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from driftline import wire_pb2 as pb
from driftline.errors import DatabaseRefused
from driftline.reconciliation.ranges import from_quantiles, uniform
from hypothesis import given
from hypothesis import strategies as st

from source_agent.methods import ranges
from source_agent.methods.interface import Handover
from tests.harness.asked_source import AskedSource, asked_source, bag, kinds
from tests.harness.exchange_pair import Table, encode

ROWS: Table = [(key, "a", None) for key in range(400)]
PARTITION = from_quantiles(list(range(0, 400, 8)), 64)
CHANGED: Table = [(key, "b" if key in {7, 210} else "a", None) for key in range(400)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def digests(source: AskedSource, ours: Table, by: int = 0) -> pb.Request:
    values = source.sums(ours, PARTITION).coarsened(by).short_digests()
    data = values.astype("<u8").tobytes()
    return pb.Request(digests=pb.Digests(coarsen=by, digests=data, last=True))


def wanted(hashes: list[bytes], source: AskedSource, ours: Table) -> pb.Request:
    """All row hashes that are not ours."""
    mine = set(source.hashed(ours)[1].m0.tolist())
    found = np.frombuffer(b"".join(hashes), "<u8")
    bits = np.array([h not in mine for h in found.tolist()], np.bool_)
    packed = np.packbits(bits, bitorder="little").tobytes()
    return pb.Request(wanted=pb.Wanted(bitmap=zstandard.compress(packed), last=True))


def refined(source: AskedSource, ours: Table, by: int = 0) -> list[pb.Reply]:
    """The whole exchange with a warehouse that wants what it does not have."""
    found: list[pb.Reply] = []

    def requests() -> Iterator[pb.Request]:
        yield digests(source, ours, by)
        yield wanted([r.row_hashes.hashes for r in found], source, ours)

    for reply in source.replies(source.opening(ours, PARTITION), requests()):
        found.append(reply)
    return found


def test_equal_totals_end_it(source: AskedSource) -> None:
    assert kinds(source.say(source.opening(ROWS, PARTITION))) == ["finished"]


def test_a_verdict_measures_what_differs(source: AskedSource) -> None:
    said = next(source.replies(source.opening(CHANGED, PARTITION))).verdict
    assert (said.count, said.sum) == (400, source.total(ROWS).sum_bytes())
    assert 1 <= said.differing <= 8
    assert (said.stuck, said.sample) == (b"", b"")


@pytest.mark.parametrize("by", [0, 2, 5])
def test_rows_that_are_not_ours_are_shipped(source: AskedSource, by: int) -> None:
    replies = refined(source, CHANGED, by)
    assert kinds(replies)[:2] == ["verdict", "mismatch"]
    assert source.shipped(replies) == {encode((7, "a", None)): 1, encode((210, "a", None)): 1}
    bitmap = zstandard.decompress(replies[1].mismatch.bitmap)
    counts = zstandard.decompress(replies[1].mismatch.counts)
    differing = int(np.unpackbits(np.frombuffer(bitmap, np.uint8)).sum())
    assert differing == (1 if by == 5 else 2)
    assert len(counts) == 4 * differing


def test_ranges_that_are_empty_at_the_warehouse_are_shipped_unasked(source: AskedSource) -> None:
    ours = ROWS[:200]
    replies = refined(source, ours)
    assert source.shipped(replies) + bag(ours) == bag(ROWS)
    hashes = sum(len(reply.row_hashes.hashes) for reply in replies) // 8
    assert hashes < 20, "at most the range in which our rows end is hashed"


def test_too_many_rows_to_hash_are_all_shipped(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ROW_HASHES_MAX", 9)
    replies = source.say(source.opening(CHANGED, PARTITION), digests(source, CHANGED))
    assert kinds(replies) == ["verdict", "mismatch", "hashes_end", "rows", "finished"]
    assert replies[2].hashes_end.too_many
    assert source.shipped(replies) == bag(ROWS)


def test_other_rows_than_were_compared_are_refused(source: AskedSource) -> None:
    compared = source.sums(CHANGED, PARTITION)
    at = Handover(compared, PARTITION, digests(source, ROWS))
    with pytest.raises(DatabaseRefused):
        list(ranges.refine(source.scan(), at))


@given(st.sets(st.integers(0, 15)), st.integers(0, 2))
def test_coarse_ranges_are_read_by_their_bounds(chosen: set[int], by: int) -> None:
    partition = uniform(60)
    coarse = np.array(sorted(c for c in chosen if c << by < partition.ranges), np.int64)
    first, last = ranges._coarse_bounds(partition, coarse, by)
    covered = set()
    for begin, end in zip(first, last, strict=True):
        covered |= set(range(*(int(partition.indices(np.array([p]))[0]) for p in (begin, end))))
        covered.add(int(partition.indices(np.array([end]))[0]))
    expected = {c << by | fine for c in coarse.tolist() for fine in range(1 << by)}
    assert covered == {index for index in expected if index < partition.ranges}
    assert len(first) == sum(c - 1 not in set(coarse.tolist()) for c in coarse.tolist())

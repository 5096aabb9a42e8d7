"""Groups: groups that differ are shipped, rows in no group too, and keys without rows are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import LimitExceeded, MalformedMessage
from driftline.reconciliation.groups import GroupSums, SizedGroups
from driftline.reconciliation.sketches import Embedding, pack, unpack
from hypothesis import given
from hypothesis import strategies as st

from source_agent.methods import groups
from source_agent.methods.groups import _merged
from tests.harness.agents import SALT
from tests.harness.asked_source import AskedSource, asked_source, bag, kinds
from tests.harness.exchange_pair import Table

SPAN, SIZE = 60, 4
EMBEDDING = Embedding(SPAN, 0)
ROWS: Table = [(key, "a", None) for key in range(SPAN)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def opening(source: AskedSource, ours: Table, *, wait_bytes: int = 0, rows_max: int = 0) -> pb.Open:
    found = source.opening(ours)
    found.strata = b""
    found.grouping.CopyFrom(
        pb.Grouping(span=SPAN, row_bytes=20, wait_bytes=wait_bytes, rows_max=rows_max)
    )
    return found


def grouped(source: AskedSource, ours: Table) -> pb.Request:
    """All our rows in groups of SIZE."""
    where, mixed = source.hashed(ours)
    ks, inside = EMBEDDING.embed(where, SALT)
    assert inside.all()
    sums = GroupSums([SizedGroups(SIZE, np.unique(ks))])
    sums.add(ks, mixed.m0)
    digests = sums.short_digests().astype("<u8").tobytes()
    return pb.Request(units=pb.Units(size=SIZE, ks=pack(np.unique(ks)), digests=digests, last=True))


def deleted(replies: list[pb.Reply]) -> list[int]:
    (said,) = [reply.deleted.ks for reply in replies if reply.HasField("deleted")]
    return [int(k) for k in unpack(said, span=SPAN, count_max=SPAN)]


def test_equal_totals_end_it(source: AskedSource) -> None:
    assert kinds(source.say(opening(source, ROWS), grouped(source, ROWS))) == ["finished"]


def test_rows_in_no_unit_are_shipped_as_they_come(source: AskedSource) -> None:
    ours = ROWS[: SPAN - 3]
    replies = source.say(opening(source, ours), grouped(source, ours))
    assert kinds(replies) == ["rows", "deleted", "finished"]
    assert source.shipped(replies) == bag(ROWS[-3:])
    assert deleted(replies) == []


def test_a_unit_that_differs_is_shipped_whole_where_hashes_cost_more(source: AskedSource) -> None:
    ours: Table = [(key, "b" if key == 5 else "a", None) for key in range(SPAN)]
    said = opening(source, ours, wait_bytes=1 << 20)
    replies = source.say(said, grouped(source, ours))
    assert kinds(replies) == ["rows", "deleted", "finished"]
    assert source.shipped(replies) == bag(ROWS[4:8])


def test_keys_without_rows_are_named(tmp_path: Path) -> None:
    theirs: Table = [row for row in ROWS if row[0] not in {9, 30, 31}]
    with asked_source(tmp_path, theirs) as source:
        said = opening(source, ROWS, wait_bytes=1 << 20)
        replies = source.say(said, grouped(source, ROWS))
    assert deleted(replies) == [9, 30, 31]


def test_malformed_units_are_refused_before_anything_is_read(source: AskedSource) -> None:
    with pytest.raises(MalformedMessage):
        source.say(opening(source, ROWS), pb.Request(whole=pb.Whole()))
    assert source.tally.rows_read == 0


def test_a_part_reads_what_is_named_and_its_ranges(source: AskedSource) -> None:
    ours = ROWS[:8]
    said = opening(source, ours, rows_max=11)
    said.grouping.firsts.append(40)
    said.grouping.lasts.append(42)
    replies = source.say(said, grouped(source, ours))
    assert source.shipped(replies) == bag(ROWS[40:43])
    assert (source.tally.scans, source.tally.rows_read) == (0, 11)
    said.grouping.rows_max = 10
    with pytest.raises(LimitExceeded):
        source.say(said, grouped(source, ours))


def test_a_part_asks_for_as_many_rows_as_the_dba_allows(source: AskedSource) -> None:
    """Refused before anything is read."""
    source.shape = replace(source.shape, relation=replace(source.shape.relation, rows_by_key=11))
    ours = ROWS[:8]
    said = opening(source, ours, rows_max=11)
    assert kinds(source.say(said, grouped(source, ours)))[-1] == "finished"
    read = source.tally.rows_read
    said.grouping.rows_max = 12
    with pytest.raises(LimitExceeded, match="11 rows") as refused:
        source.say(said, grouped(source, ours))
    assert "rows_by_key" in refused.value.message
    assert "read_at_most" in refused.value.remedy
    assert source.tally.rows_read == read


def test_too_many_hashes_are_units_shipped_whole(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: Table = [(key, "b" if key == 5 else "a", None) for key in range(SPAN)]
    said = opening(source, ours)
    said.grouping.row_bytes = 10_000
    assert "mismatch" in kinds([next(source.replies(said, [grouped(source, ours)]))])
    monkeypatch.setattr(groups, "GROUP_HASHES_MAX", 3)
    assert kinds(source.say(said, grouped(source, ours))) == ["rows", "deleted", "finished"]


@given(st.lists(st.tuples(st.integers(-9, 60), st.integers(0, 12)), max_size=8))
def test_ranges_are_merged(drawn: list[tuple[int, int]]) -> None:
    first = np.array([a for a, _ in drawn], np.int64)
    last = np.array([a + more for a, more in drawn], np.int64)
    begin, end = _merged(first, last)
    covered = {x for a, more in drawn for x in range(a, a + more + 1)}
    found = [x for a, b in zip(begin.tolist(), end.tolist(), strict=True) for x in range(a, b + 1)]
    assert found == sorted(covered)

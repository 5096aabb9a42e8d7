"""Every row is shipped: for a load, and after a comparison that found too much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DatabaseRefused
from driftline.reconciliation.ranges import RangeSums, uniform
from driftline.rows.digests import Digest

from source_agent.methods.full_copy import send_again
from source_agent.methods.interface import Handover
from tests.harness.asked_source import AskedSource, asked_source, bag, kinds
from tests.harness.exchange_pair import Table

ROWS: Table = [(key, "a", None) for key in range(20)]
WHOLE = pb.Request(whole=pb.Whole())


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def test_a_load(source: AskedSource) -> None:
    replies = source.say(source.opening([]))
    assert kinds(replies) == ["rows", "finished"]
    assert source.shipped(replies) == bag(ROWS)
    end = replies[-1].finished
    assert (end.equal, end.count, end.sum) == (False, 20, source.total(ROWS).sum_bytes())
    assert (end.scans, end.rows_read, source.tally.phase) == (1, 20, "ship")


def test_a_load_of_nothing_is_equal(tmp_path: Path) -> None:
    with asked_source(tmp_path, []) as source:
        (reply,) = source.say(source.opening([]))
    assert reply.finished.equal


def test_a_copy_after_a_verdict_reads_once_more(source: AskedSource) -> None:
    replies = source.say(source.opening(ROWS[:5]), WHOLE)
    assert kinds(replies) == ["verdict", "rows", "finished"]
    assert source.shipped(replies) == bag(ROWS)
    assert replies[-1].finished.scans == 2


def test_other_rows_than_were_compared_are_refused(source: AskedSource) -> None:
    compared = RangeSums(16)
    compared.total = source.total(ROWS) + Digest(0, 1)
    at = Handover(compared, uniform(16), WHOLE)
    with pytest.raises(DatabaseRefused):
        list(send_again(source.scan(), at))

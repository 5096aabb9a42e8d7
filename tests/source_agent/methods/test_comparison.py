"""The driver of a comparison: what it says at the end, and how it waits for requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage

from tests.harness.asked_source import AskedSource, asked_source, kinds
from tests.harness.exchange_pair import Table

ROWS: Table = [(key, "a", None) for key in range(20)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def test_the_end_says_how_the_rows_were_read(source: AskedSource) -> None:
    (reply,) = source.say(source.opening(ROWS))
    end = reply.finished
    assert (end.equal, end.count, end.sum) == (True, 20, source.total(ROWS).sum_bytes())
    assert (end.scans, end.rows_read) == (1, 20)
    assert (end.consistency, end.changed, end.vouched) == ("exact", False, True)
    assert end.as_of
    assert not end.HasField("row_security")


def test_a_stream_that_ends_in_the_middle_is_malformed(source: AskedSource) -> None:
    replies = source.replies(source.opening(ROWS[1:]))
    assert next(replies).HasField("verdict")
    with pytest.raises(MalformedMessage, match="ended in the middle"):
        next(replies)


def test_writers_do_not_wait_while_the_network_does(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is paused before every request is waited for."""
    paused: list[str] = []
    monkeypatch.setattr(source.session, "pause", lambda: paused.append("pause"))

    def requests() -> Iterator[pb.Request]:
        assert paused == ["pause"]
        yield pb.Request(whole=pb.Whole())

    replies = list(source.replies(source.opening(ROWS[1:]), requests()))
    assert kinds(replies) == ["verdict", "rows", "finished"]
    assert paused == ["pause"]


@pytest.mark.parametrize("level", [0, 1, 19, 20, 2**32 - 1])
def test_a_level_that_zstd_does_not_know_is_brought_back(source: AskedSource, level: int) -> None:
    said = source.opening([])
    said.level = level
    assert kinds(source.say(said)) == ["rows", "finished"]

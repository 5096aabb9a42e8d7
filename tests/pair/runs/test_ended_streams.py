"""A source ends a stream that it has waited for: only the relation that it refused fails by it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, LimitExceeded, NotNow

from source_agent.server.conversation import Conversation
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.transport.channel import SourceChannel, Stream

pytestmark = pytest.mark.starts

TABLES = ("a", "b", "c")
WAIT_S_MAX = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with closing(SqliteLegacy(tmp_path / "erp.db")) as legacy:
        for name in TABLES:
            legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
            legacy.many(f"INSERT INTO {name} VALUES (?, ?)", [(n, f"row {n}") for n in range(400)])
        relations = {name: f'table = "{name}"' for name in TABLES}
        with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
            made.small_bytes = 64 << 20
            made.fragment_lines = dict.fromkeys(TABLES, 'method = "range"')
            assert [report.error for report in made.reports()] == [None] * 3
            yield made


@pytest.mark.parametrize("kind", [NotNow, pytest.param(LimitExceeded, marks=pytest.mark.soak)])
def test_the_next_relation_is_compared_in_a_new_stream(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[DriftlineError]
) -> None:
    """The stream is at its end when the next opening comes, and nothing answers it."""
    gave_up, overdue, send = threading.Event(), Conversation._overdue, Stream.send
    streams = list[tuple[str, ...]]()
    begin = SourceChannel.stream

    def waited(self: Conversation, **options: bool) -> DriftlineError | None:
        if self._slot is None or self._requests.waiting_since is None or gave_up.is_set():
            return overdue(self, **options)
        gave_up.set()
        return kind("The source waited 9 s for the warehouse.")

    def slow(self: Stream, request: pb.Request) -> None:
        if not request.HasField("open"):
            assert gave_up.wait(WAIT_S_MAX)
        send(self, request)

    def begun(self: SourceChannel, relations: Iterable[str] = ()) -> Stream:
        streams.append(named := tuple(relations))
        return begin(self, named)

    for name in TABLES:
        pair.legacy.execute(f"UPDATE {name} SET note = 'new' WHERE id % 50 = 0")
    with monkeypatch.context() as patch:
        patch.setattr(Conversation, "_overdue", waited)
        patch.setattr(Stream, "send", slow)
        patch.setattr(SourceChannel, "stream", begun)
        first, *others = pair.reports(attempts=1)
    assert (first.error or {})["code"] == kind.code
    for report in others:
        assert report.error is None, report.error
        pair.check(report.name)
    assert [len(named) for named in streams] == [3, 2]
    pair.refresh(first.name)
    pair.check(first.name)


def test_a_stream_that_ends_between_two_relations(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source heard nothing for too long behind the first one: no relation fails by it."""
    gave_up, overdue, send = threading.Event(), Conversation._overdue, Stream.send
    opened, streams, begin = list[str](), list[tuple[str, ...]](), SourceChannel.stream

    def waited(self: Conversation, **options: bool) -> DriftlineError | None:
        if not opened or self._requests.waiting_since is None or gave_up.is_set():
            return overdue(self, **options)
        if self._sent_at <= self._opened_at or options.get("probes") is False:
            return overdue(self, **options)
        gave_up.set()
        return LimitExceeded("The warehouse sent nothing for 9 s.")

    def slow(self: Stream, request: pb.Request) -> None:
        if request.HasField("open"):
            if opened:
                assert gave_up.wait(WAIT_S_MAX)
            opened.append(request.open.relation)
        send(self, request)

    def begun(self: SourceChannel, relations: Iterable[str] = ()) -> Stream:
        streams.append(named := tuple(relations))
        return begin(self, named)

    with monkeypatch.context() as patch:
        patch.setattr(Conversation, "_overdue", waited)
        patch.setattr(Stream, "send", slow)
        patch.setattr(SourceChannel, "stream", begun)
        found = pair.reports(attempts=1)
    assert gave_up.is_set()
    assert [report.error for report in found] == [None] * 3
    assert [len(named) for named in streams] == [3, 2]
    assert opened == ["a", "b", "b", "c"]

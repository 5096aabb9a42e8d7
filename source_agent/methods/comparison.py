"""The source's half of an exchange about one relation (protocol, section 9).

A comparison is a generator of replies over an iterator of requests: it runs the generators of the
methods, and waits for the requests (`wire.exchange_states` refuses those that may not come).
The opening decides which method answers (`registry`); a method that cannot finish hands over to the
one that the warehouse asks for next. If the opening names a tile, or a part by keys, only its rows
exist (`scan.tile`, `scan.key_part`). This module knows no gRPC server, no engine and no method.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.relations.activity_messages import to_message
from driftline.rows.digests import Salt
from driftline.wire.exchange_states import StateTracker
from driftline.wire.negotiation import check_fields

from source_agent.engines.interface import Session
from source_agent.engines.relations.shapes import Shape
from source_agent.failpoints import SourceFailpoint
from source_agent.methods import registry
from source_agent.methods.interface import ExchangeEnd, Handover, Replies, Scan
from source_agent.methods.request_validation import parse_opening
from source_agent.scan import marked as marked_scan
from source_agent.scan.frame_builder import FrameBuilder
from source_agent.scan.key_part import KeyPartReader, ranges_of
from source_agent.scan.locators import LocatorMemory, MemoryShare
from source_agent.scan.reader import ReadCounts, Reader
from source_agent.scan.tile import reader_of
from source_agent.scan.workers import WorkerPool

__all__ = ["Comparison", "ReadCounts"]

_LEVEL_MAX = 19  # of zstd


class Comparison:
    """One relation of one exchange."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        opening: pb.Open,
        tally: ReadCounts,
        pool: WorkerPool | None = None,
        memory: LocatorMemory | None = None,
    ) -> None:
        """Parse and check an opening; read nothing.

        tally: counts what this comparison reads; pool: processes that may read parts of the scan;
        memory: to keep where rows lie; None: rows are read again without.
        Raises VersionMismatch, RecipeChanged, MalformedMessage, ConfigurationError.
        """
        parsed = parse_opening(opening, shape)
        self._answer = registry.answer_to(parsed)
        reader = _reader_of(session, shape, opening, parsed.salt, tally)
        level = min(max(opening.level, 1), _LEVEL_MAX)
        frames = FrameBuilder(shape.recipe, parsed.salt, level=level)
        self._memory = memory
        self._share = None if memory is None else MemoryShare(memory)
        keeps = memory is not None and memory.expects(shape.relation.name)
        self._scan = Scan(reader, frames, parsed.ours, pool, memory=self._share, keeps=keeps)
        self._session, self._opening = session, opening
        self._activity = session.capabilities.activities.get(shape.relation.name)

    def answer(self, requests: Iterator[pb.Request]) -> Generator[pb.Reply, None, None]:
        """Yield every reply to the opening and to the requests that follow it.

        Raises NullKey, ValueDoesNotFit, SnapshotLost, MalformedMessage, LimitExceeded.
        """
        at = StateTracker()
        at.follow(pb.Request(open=self._opening))
        try:
            yield from at.run(self._replies(), lambda _: self._receive(requests))
        finally:
            if self._share is not None:
                self._share.release()

    def _receive(self, requests: Iterator[pb.Request]) -> pb.Request:
        self._scan.reader.pause()
        request = next(requests, None)
        if request is None:
            raise MalformedMessage("The stream ended in the middle of a relation.")
        check_fields(request)
        return request

    def _replies(self) -> Replies[None]:
        if self._opening.HasField("since"):
            marked = marked_scan.begin(self._session, self._scan.reader, self._opening.since)
            self._scan.frames.sent = marked.note_sent
            self._scan = replace(self._scan, marked=marked)
        end = yield from self._answer.replies(self._scan)
        if self._memory is not None:
            differs = isinstance(end, Handover) or not end.equal
            self._memory.note(self._scan.reader.shape.relation.name, differs=differs)
        if isinstance(end, Handover):
            go_on = registry.continuation_of(end.request)
            end = yield from go_on(self._scan, end)
        yield self._finished(end)
        SourceFailpoint.FINISHED_SENT.reach()

    def _finished(self, end: ExchangeEnd) -> pb.Reply:
        reader, total = self._scan.reader, end.total
        security, marked = reader.shape.row_security, self._scan.marked
        return pb.Reply(
            finished=pb.Finished(
                equal=end.equal,
                count=total.count,
                sum=total.sum_bytes(),
                as_of=reader.as_of,
                consistency=reader.consistency.value,
                changed=reader.changed,
                vouched=reader.shape.vouched,
                scans=reader.tally.scans,
                rows_read=reader.tally.rows_read,
                held_back_s=reader.tally.held_back_s,
                row_security=security.message() if security else None,
                activity=to_message(self._activity) if self._activity else None,
                met=end.met,
                since=None if marked is None else marked.message(by_marker=end.by_marker),
            )
        )


def _reader_of(
    session: Session, shape: Shape, opening: pb.Open, salt: Salt, tally: ReadCounts
) -> Reader:
    """Return the reader of the rows in an opening; read nothing."""
    if not opening.grouping.HasField("keys"):
        return reader_of(session, shape, opening, salt=salt, tally=tally)
    ranges, key = ranges_of(opening.grouping.keys, shape), opening.fragment_key
    return KeyPartReader(session, shape, ranges, fragment_key=key, salt=salt, tally=tally)

"""The interface of a comparison method at the source.

An *answer* recognises its opening, adds up what it needs in one scan, and replies. If more differs
than the warehouse expected, it hands over its sums and the warehouse's next request, and a
*continuation* goes on from there. A new method is one module with a class like `MethodAnswer`, and
one line in `registry`. A method sees an exchange only through `Scan`: no engine and no server.

Both are generators of replies (`Replies`), as the warehouse's methods are of requests: `yield
reply` sends, `request = yield None` receives. Who runs them waits (`comparison`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeVar

from driftline import wire_pb2 as pb
from driftline.arrays import Bools, Positions
from driftline.reconciliation.ranges import Partition, RangeSums
from driftline.rows.digests import Digest

from source_agent.methods.request_validation import ParsedOpening
from source_agent.scan.accumulators import Accumulator
from source_agent.scan.batches import Batches
from source_agent.scan.frame_builder import FrameBuilder
from source_agent.scan.locators import ROW_BYTES_LEAST, KeptLocators, Labelling, MemoryShare
from source_agent.scan.marked import ExchangeMarker
from source_agent.scan.reader import Reader
from source_agent.scan.workers import WorkerPool, fill

T = TypeVar("T")
KEY_BYTES_EXPECTED: Final = 64  # of a key that is kept to read its row
# Yields a reply to be sent; or None, to be sent the next request.
Replies = Generator[pb.Reply | None, pb.Request, T]


@dataclass(frozen=True, slots=True)
class Scan:
    """The exchange that a method answers: rows to read, and rows to send.

    reader: of the relation, in one snapshot; frames: to `flush` before any other reply; ours: the
    warehouse's total; pool: processes that may read parts of a scan; marked: the marker of the
    relation, if the warehouse asked for its mark; memory: for keys, and for where rows lie if it
    `keeps` that; None: there is none.
    """

    reader: Reader
    frames: FrameBuilder
    ours: Digest
    pool: WorkerPool | None = None
    marked: ExchangeMarker | None = None
    memory: MemoryShare | None = None
    keeps: bool = True

    def fill(self, *accumulators: Accumulator, kept: KeptLocators | None = None) -> None:
        """Read every row once, shared with the pool, and add it to every accumulator.

        kept: from `keeping`, to be filled, too. Raises the errors of `Reader.scan`.
        """
        if kept is None:
            fill(self.reader, accumulators, self.pool)
        else:
            fill(self.reader, (*accumulators, kept), self.pool, kept.again)

    def keeping(self, label: Labelling) -> KeptLocators | None:
        """Return what keeps where the rows of the scan lie.

        label: see `scan.locators`. None: the rows have no locators, or they shall not be kept, or
        there is no memory for them.
        """
        memory, expected = self.memory, self.reader.shape.rows_expected
        if memory is None or not self.keeps or not memory.holds(max(expected, 1) * ROW_BYTES_LEAST):
            return None
        again = self.reader.again()
        return None if again is None else KeptLocators(again, label, memory)

    def keys_first(
        self, is_wanted: Callable[[Positions], Bools], *, rows: int, total: int
    ) -> tuple[Batches, int] | None:
        """Return what `Reader.keys_first` returns, within the memory; None too if there is none.

        is_wanted: asked for positions, int64 [n]; returns bool [n].
        """
        if self.memory is None or not self.memory.holds(rows * KEY_BYTES_EXPECTED):
            return None
        return self.reader.keys_first(is_wanted, self.memory.take, rows=rows, total=total)


@dataclass(frozen=True, slots=True)
class ExchangeEnd:
    """The end of an exchange. total: of the source's rows, or of their keys if `by_marker`; equal:
    the warehouse holds the same rows; met: the listed chunks that it has, as in `Finished`."""

    total: Digest
    equal: bool = False
    by_marker: bool = False
    met: bytes = b""


@dataclass(frozen=True, slots=True)
class Handover:
    """The state from which a continuation goes on: its request, and the source's range sums.

    kept: where the rows lie, labelled by their ranges; None: not kept.
    """

    sums: RangeSums
    partition: Partition
    request: pb.Request
    kept: KeptLocators | None = None


class MethodAnswer(Protocol):
    """The source's half of one method, for one exchange."""

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        """Return the answer to this opening, or None if it is for another method. Read nothing.

        Raises MalformedMessage or ConfigurationError if this method cannot answer it.
        """

    def replies(self, scan: Scan) -> Replies[ExchangeEnd | Handover]:
        """Yield every reply but the last.

        An answer receives the messages that follow the opening at once before it reads a row, so
        that malformed ones cost the database nothing.
        Raises NullKey, ValueDoesNotFit, SnapshotLost, MalformedMessage, LimitExceeded.
        """


# Goes on from a handover, and yields every reply but the last.
Continuing = Callable[[Scan, Handover], Replies[ExchangeEnd]]

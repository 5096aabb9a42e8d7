"""The warehouse's half of an exchange about one relation (protocol, section 9).

A conversation over two callables, send and receive, so that tests drive it without a network:
opening, verdict, digests, row hashes as multisets, wanted rows. Frames go to staging as they come.
The stream carries the snapshot; nothing here touches Spark, but `list_rows` is called once, while
the source waits, for the rows of differing ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import zstandard
from driftline import frames
from driftline import wire_pb2 as pb
from driftline.digests import Digest, Salt
from driftline.errors import MalformedMessage
from driftline.limits import (
    DIGESTS_PER_MESSAGE,
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    RANGES_MAX,
    ROW_HASHES_MAX,
)
from driftline.ranges import Partition, RangeSums, strata

from warehouse_agent.link import refusal
from warehouse_agent.plan import LOAD_LEVEL, REFRESH_LEVEL, Method, choose
from warehouse_agent.reduce import Listing

Bools = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]
ListRows = Callable[[int, Bools], Listing]

COUNT_BYTES = 4  # of the rows in one differing range


class Wire(Protocol):
    """What carries an exchange: `link.Stream`, or a test's queue."""

    def send(self, request: pb.Request) -> None: ...

    def receive(self) -> pb.Reply: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """Our side, reduced before the stream opens."""

    relation: str
    recipe_id: bytes
    fragment_key: bytes = field(repr=False)
    salt: Salt
    partition: Partition
    sums: RangeSums
    row_bytes: float
    forced: Method | None = None
    rows_expected: int = 0


@dataclass(slots=True)
class Outcome:
    """What an exchange found. `removed` are rows of ours that the source does not have."""

    theirs: Digest = field(default_factory=Digest)
    equal: bool = False
    replace_all: bool = False
    removed: Listing | None = None
    method: Method = Method.RANGE
    bytes_expected: int = 0
    round_trips: int = 1
    as_of: str = ""
    consistency: str = ""
    changed: bool = False
    vouched: bool = False
    scans: int = 0
    rows_read: int = 0
    frame_bytes: int = 0


class Conversation:
    """One relation of one exchange; `run` is all of it."""

    def __init__(
        self,
        wire: Wire,
        opening: Opening,
        *,
        keep: Callable[[bytes], None],
        list_rows: ListRows,
        progress: Callable[[pb.Progress], None],
    ) -> None:
        self._wire, self._opening = wire, opening
        self._keep, self._list_rows, self._progress = keep, list_rows, progress
        self._out = Outcome()
        self._shipping = pb.Progress(phase="ship", rows_expected=opening.rows_expected)
        # Whether the source has ended this relation, so that the next may follow in the stream.
        self.ended = False

    def run(self) -> Outcome:
        """Converse until the source has finished.

        Raises:
            DriftlineError: whatever the source refused with, or a broken line or message.
        """
        self._wire.send(pb.Request(open=self._open()))
        reply = self._receive()
        if reply.WhichOneof("message") == "verdict":
            self._refine(reply.verdict)
        else:
            self._finish(reply)
            if self._opening.sums.total.count and not self._out.equal:
                raise MalformedMessage("The source finished, but its rows are not ours.")
            self._out.method = Method.FULL if not self._opening.sums.total.count else Method.RANGE
        return self._out

    def _open(self) -> pb.Open:
        o = self._opening
        total = o.sums.total
        starts = o.partition.starts
        steps = [_wrap(b - a) for a, b in zip((0, *starts), starts, strict=False)]
        return pb.Open(
            protocol=PROTOCOL_VERSION,
            relation=o.relation,
            recipe=o.recipe_id,
            fragment_key=o.fragment_key,
            salt=o.salt.to_bytes(),
            count=total.count,
            sum=total.sum_bytes(),
            start_steps=steps,
            shifts=bytes(o.partition.shifts),
            strata=strata(o.sums.short_digests(), o.salt).astype("<u2").tobytes(),
            level=REFRESH_LEVEL if total.count else LOAD_LEVEL,
        )

    def _refine(self, verdict: pb.Verdict) -> None:
        o = self._opening
        choice = choose(
            ours=o.sums.total,
            theirs=Digest(verdict.count, int.from_bytes(verdict.sum, "little")),
            ranges=o.partition.ranges,
            differing=verdict.ranges_differing,
            row_bytes=o.row_bytes,
            forced=o.forced,
        )
        self._out.method, self._out.bytes_expected = choice.method, choice.bytes_expected
        self._out.round_trips = 2
        if choice.method is Method.FULL:
            self._wire.send(pb.Request(whole=pb.Whole()))
            self._shipping.rows_expected = verdict.count
            self._out.replace_all = True
            self._finish(self._receive())
            return
        ours = o.sums.coarsened(choice.coarsen).short_digests()
        for piece, last in _pieces(ours):
            digests = pb.Digests(coarsen=choice.coarsen, digests=piece, last=last)
            self._wire.send(pb.Request(digests=digests))
        differs, counts = self._mismatch(len(ours))
        hashes = self._hashes()
        if hashes is None:
            self._out.replace_all = True
            self._finish(self._receive())
            return
        # Hashes come range by range for those of which both sides hold something.
        hashed = (ours[differs] != 0) & (counts > 0)
        if int(counts[hashed].sum()) != len(hashes):
            raise MalformedMessage("The source sent another number of row hashes than it said.")
        ranges = np.repeat(np.flatnonzero(differs)[hashed], counts[hashed])
        listed = self._list_rows(choice.coarsen, differs & (ours != 0))
        removed, wanted = multiset_difference(listed.ranges, listed.hashes, ranges, hashes)
        self._out.removed = _some(listed, removed)
        if len(hashes):
            self._out.round_trips = 3
            self._want(wanted)
        self._finish(self._receive())

    def _mismatch(self, ranges: int) -> tuple[Bools, npt.NDArray[np.int64]]:
        """Which ranges differ, bool [ranges], and the source's rows in each that does."""
        bitmap, numbers = bytearray(), bytearray()
        is_last = False
        while not is_last:
            reply = self._receive()
            if reply.WhichOneof("message") != "mismatch":
                raise MalformedMessage("The differing ranges were expected.")
            bitmap += reply.mismatch.bitmap
            numbers += reply.mismatch.counts
            is_last = reply.mismatch.last
            if len(bitmap) + len(numbers) > 2 * COUNT_BYTES * RANGES_MAX:
                raise MalformedMessage("The differing ranges came with too many bytes.")
        raw = _inflate(bytes(bitmap), (ranges + 7) // 8)
        if len(raw) != (ranges + 7) // 8:
            raise MalformedMessage("The bitmap of differing ranges has another length.")
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[:ranges]
        raw = _inflate(bytes(numbers), int(bits.sum()) * COUNT_BYTES)
        if len(raw) != int(bits.sum()) * COUNT_BYTES:
            raise MalformedMessage("The differing ranges came with another number of counts.")
        return bits.astype(np.bool_), np.frombuffer(raw, "<u4").astype(np.int64)

    def _hashes(self) -> Hashes | None:
        """All row hashes in the order they came; None: too many, everything follows."""
        pieces: list[Hashes] = []
        held = 0
        while True:
            reply = self._receive()
            kind = reply.WhichOneof("message")
            if kind == "hashes_end":
                if reply.hashes_end.too_many:
                    return None
                return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)
            if kind != "row_hashes" or len(reply.row_hashes.hashes) % 8:
                raise MalformedMessage("Row hashes were expected.")
            pieces.append(np.frombuffer(reply.row_hashes.hashes, "<u8").astype(np.uint64))
            held += len(pieces[-1])
            if held > ROW_HASHES_MAX:
                raise MalformedMessage(f"More than {ROW_HASHES_MAX} row hashes came.")

    def _want(self, wanted: Bools) -> None:
        bitmap = np.packbits(wanted, bitorder="little").tobytes()
        data = zstandard.ZstdCompressor(level=REFRESH_LEVEL).compress(bitmap)
        step = MESSAGE_BYTES_MAX // 2
        for at in range(0, len(data), step):
            piece = pb.Wanted(bitmap=data[at : at + step], last=at + step >= len(data))
            self._wire.send(pb.Request(wanted=piece))

    def _finish(self, reply: pb.Reply) -> None:
        if reply.WhichOneof("message") != "finished":
            raise MalformedMessage("The end of the relation was expected.")
        done, out = reply.finished, self._out
        self.ended = True
        out.theirs = Digest(done.count, int.from_bytes(done.sum, "little"))
        out.equal = out.theirs == self._opening.sums.total
        out.as_of, out.consistency = done.as_of, done.consistency
        out.changed, out.vouched = done.changed, done.vouched
        out.scans, out.rows_read = done.scans, done.rows_read

    def _receive(self) -> pb.Reply:
        """The next reply that is neither progress nor rows; those are dealt with here."""
        while True:
            reply = self._wire.receive()
            kind = reply.WhichOneof("message")
            if kind == "progress":
                self._progress(reply.progress)
            elif kind == "rows":
                self._out.frame_bytes += len(reply.rows.frame)
                self._keep(reply.rows.frame)
                self._shipping.rows += frames.rows_in(reply.rows.frame)
                self._progress(self._shipping)
            elif kind == "refused":
                self.ended = True
                raise refusal(reply.refused)
            else:
                return reply


def multiset_difference(
    our_ranges: npt.NDArray[np.int64],
    our_hashes: Hashes,
    their_ranges: npt.NDArray[np.int64],
    their_hashes: Hashes,
) -> tuple[Bools, Bools]:
    """Which of ours they do not have, and which of theirs we do not have, range by range.

    bool [ours], bool [theirs]. Equal pairs cancel one for one, so duplicates count.
    """
    ranges = np.concatenate([our_ranges, their_ranges])
    hashes = np.concatenate([our_hashes, their_hashes])
    theirs = np.repeat([False, True], [len(our_ranges), len(their_ranges)])
    order = np.lexsort((theirs, hashes, ranges))
    r, h, t = ranges[order], hashes[order], theirs[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (r[1:] != r[:-1]) | (h[1:] != h[:-1])
    group = np.cumsum(fresh) - 1
    groups = int(group[-1]) + 1 if len(group) else 0
    n_theirs = np.bincount(group, weights=t, minlength=groups).astype(np.int64)
    n_ours = np.bincount(group, minlength=groups) - n_theirs
    pairs = np.minimum(n_ours, n_theirs)[group]
    first = np.flatnonzero(fresh)[group]
    rank = np.arange(len(order)) - first - np.where(t, n_ours[group], 0)
    alone = np.zeros(len(order), np.bool_)
    alone[order] = rank >= pairs
    return alone[: len(our_ranges)], alone[len(our_ranges) :]


def _some(listed: Listing, chosen: Bools) -> Listing:
    return Listing(
        listed.ranges[chosen],
        listed.positions[chosen],
        listed.hashes[chosen],
        listed.file[chosen],
    )


def _pieces(digests: Hashes) -> Iterator[tuple[bytes, bool]]:
    for at in range(0, len(digests), DIGESTS_PER_MESSAGE):
        end = at + DIGESTS_PER_MESSAGE
        yield digests[at:end].astype("<u8").tobytes(), end >= len(digests)


def _inflate(data: bytes, limit: int) -> bytes:
    """At most `limit` bytes. The size that a frame declares is allocated: it is looked at first."""
    try:
        if zstandard.frame_content_size(data) > limit:
            raise MalformedMessage("A bitmap is longer than what it is about.")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(limit, 1))
    except zstandard.ZstdError as error:
        raise MalformedMessage(f"A bitmap is damaged: {error}.") from None


def _wrap(step: int) -> int:
    """The step modulo 2^64, signed."""
    return (step + (1 << 63)) % (1 << 64) - (1 << 63)

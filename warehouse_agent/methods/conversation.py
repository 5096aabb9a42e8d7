"""The warehouse's half of an exchange about one relation (protocol, section 9).

A conversation over two callables, send and receive, so that tests drive it without a network: the
opening, with cells where the number of changes is predicted; then either the changed rows at once,
or a verdict, and what `plan.choose` makes of it: more cells, range digests (`refine`), everything.
Frames go to staging as they come. The stream carries the snapshot; nothing here touches Spark, but
`list_rows` is called once, while the source waits, where ranges are refined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from driftline import frames
from driftline import wire_pb2 as pb
from driftline.columns import join
from driftline.digests import Digest, Salt
from driftline.errors import MalformedMessage
from driftline.fingerprints import position_seed
from driftline.keys import positions, received
from driftline.limits import CELLS_PER_MESSAGE
from driftline.negotiation import Agreement
from driftline.ranges import Partition, strata
from driftline.sketches import CELL_BYTES, Embedding, Grid, unpack
from driftline.types import Recipe

from warehouse_agent.methods import groups, ranges
from warehouse_agent.planning.choice import Choice, Costs, Disagreement, Method, choose, offers
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.sketch_size import Sample, Sketch, Stall
from warehouse_agent.report import utc_now
from warehouse_agent.storage.row_security import RowSecurity
from warehouse_agent.tasks.difference import (
    BelowKeys,
    Difference,
    Equal,
    Everything,
    ListedRows,
    Outcome,
)
from warehouse_agent.tasks.digests import Listing, Sums
from warehouse_agent.transport.frame_admission import Admission, Room
from warehouse_agent.transport.reply_validation import refusal


class Wire(Protocol):
    """What carries an exchange: `link.Stream`, or a test's queue."""

    @property
    def agreed(self) -> Agreement: ...

    def send(self, request: pb.Request) -> None: ...

    def receive(self) -> pb.Reply: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """Our side, reduced before the stream opens."""

    relation: str
    recipe: Recipe
    fragment_key: bytes = field(repr=False)
    salt: Salt
    partition: Partition
    sums: Sums
    prices: Prices
    sketch: Sketch | None = None
    grouped: groups.Grouped | None = None
    forced: Method | None = None
    line: Line = field(default_factory=Line)
    rows_expected: int = 0  # for progress only
    room: Room | None = None  # for what comes; None: nothing bounds it
    within: tuple[int, int] | None = None  # of a tile, both inclusive
    rows_lost: int = 0  # of ours: they differ where ours are compared, and are no new ones


class Conversation:
    """One relation of one exchange; `run` is all of it."""

    def __init__(
        self,
        wire: Wire,
        opening: Opening,
        *,
        keep: Callable[[bytes], None],
        list_rows: ranges.ListRows,
        progress: Callable[[pb.Progress], None],
        list_keys: groups.ListKeys | None = None,
    ) -> None:
        self._wire, self._opening = wire, opening
        self._keep, self._progress = keep, progress
        self._list_rows, self._list_keys = list_rows, list_keys
        method = Method.SKETCH if opening.sketch else Method.RANGE
        self._method = Method.GROUP if opening.grouped else method
        self._difference: Difference | None = None
        self._round_trips, self._frame_bytes, self._shipped = 1, 0, Digest()
        self._shipping = pb.Progress(phase="ship", rows_expected=opening.rows_expected)
        # What came while cells or units of ours may have been read: the k of its rows inside.
        self._came: list[npt.NDArray[np.uint64]] | None = None
        self._ours: npt.NDArray[np.uint64] | None = None  # of units: the only k that count
        self.admission = Admission(opening.recipe, opening.salt, room=opening.room)
        # Whether the source has ended this relation, so that the next may follow in the stream.
        self.ended = False

    def run(self) -> Outcome:
        """Converse until the source has finished.

        Raises:
            DriftlineError: whatever the source refused with, or a broken line or message.
        """
        sketch = self._opening.sketch
        self._wire.send(pb.Request(open=self._open()))
        if self._opening.grouped is not None:
            return self._finished(self._by_groups(self._opening.grouped))
        grid = sketch.sent if sketch else None
        if grid is not None:
            self._send_cells(None, grid, None)
        reply = self._receive()
        while reply.WhichOneof("message") == "verdict":
            self.admission.announce(reply.verdict.count)
            stuck = None if grid is None else ranges.bitmap(reply.verdict.stuck, len(grid))
            choice = self._choose(reply.verdict, self._stall(reply.verdict, grid, stuck))
            self._method = choice.method
            self._round_trips += 1
            if choice.method is Method.SKETCH:
                assert choice.grid is not None
                self._send_cells(grid, choice.grid, stuck)
                grid = choice.grid
                reply = self._receive()
                continue
            self._came = None
            reply = self._everything() if choice.method is Method.FULL else self._refine(choice)
            break
        if reply.WhichOneof("message") == "deleted" and self._came is not None:
            assert sketch is not None
            span = sketch.embedding.span
            gone = unpack(reply.deleted.ks, span=span, count_max=sketch.cells)
            self._replace(sketch.embedding, gone)
            reply = self._receive()
        return self._finished(reply)

    def _by_groups(self, grouped: groups.Grouped) -> pb.Reply:
        """Units, and what the source makes of them; returns the end."""
        for request in grouped.requests():
            self._wire.send(request)
        self._came = []
        if grouped.part is None:
            # Below others there is nothing of ours, however many rows the source has there. A part
            # has a budget, and rows that were left: one of these that came must fail the proof.
            self._ours = grouped.ours()
        reply = self._receive()
        if reply.WhichOneof("message") == "mismatch":
            self._came = None
            assert self._list_keys is not None
            found = groups.regroup(
                grouped,
                send=self._wire.send,
                receive=self._receive,
                first=reply,
                list_keys=self._list_keys,
            )
            self._difference = ListedRows(found.removed)
            self._round_trips += found.round_trips
            return found.reply
        if reply.WhichOneof("message") == "deleted":
            gone = groups.gone_of(grouped, reply)
            self._replace(grouped.embedding, np.concatenate([gone, grouped.hot]))
            reply = self._receive()
        return reply

    def _open(self) -> pb.Open:
        o = self._opening
        total = o.sums.total
        starts = o.partition.starts
        steps = [_wrap(b - a) for a, b in zip((0, *starts), starts, strict=False)]
        cells = o.sums.cells
        if cells is not None:
            cells.reduce()
        slots = cells.r if cells is not None else o.sums.ranges.short_digests()
        sampled = b"" if o.grouped else strata(slots, o.salt).tobytes()
        agreed = self._wire.agreed
        return pb.Open(
            protocol=agreed.protocol,
            features=agreed.features,
            relation=o.relation,
            recipe=o.recipe.id,
            fragment_key=o.fragment_key,
            salt=o.salt.to_bytes(),
            count=total.count,
            sum=total.sum_bytes(),
            start_steps=steps,
            shifts=bytes(o.partition.shifts),
            strata=sampled,
            level=o.line.level(total.count),
            sketch=None if o.sketch is None or cells is None else _described(o.sketch, cells.check),
            grouping=None if o.grouped is None else o.grouped.described(),
            within=None if o.within is None else pb.Within(first=o.within[0], last=o.within[1]),
        )

    def _stall(
        self, verdict: pb.Verdict, grid: Grid | None, stuck: npt.NDArray[np.bool_] | None
    ) -> Stall | None:
        sketch, cells, sample = self._opening.sketch, self._opening.sums.cells, None
        if verdict.sample:
            if cells is None:
                raise MalformedMessage("A sample of cells came where there are none.")
            sample = Sample(len(verdict.sample), cells.differing(verdict.sample))
        return Stall(sketch, grid, _count(stuck), sample) if sketch else None

    def _choose(self, verdict: pb.Verdict, stall: Stall | None) -> Choice:
        o = self._opening
        at = Disagreement(
            Costs(o.prices, o.line, o.recipe.integer_key, o.forced, o.rows_lost),
            ours=Digest(o.sums.total.count + o.rows_lost),
            theirs=Digest(verdict.count, int.from_bytes(verdict.sum, "little")),
            ranges=o.partition.ranges,
            differing=verdict.differing,
            stall=stall,
        )
        return choose(at, offers(at))

    def _send_cells(
        self, before: Grid | None, grid: Grid, stuck: npt.NDArray[np.bool_] | None
    ) -> None:
        cells = self._opening.sums.cells
        assert cells is not None
        none = np.zeros(0, np.bool_)
        data = cells.children(before, grid, none if stuck is None else stuck).to_bytes()
        step = CELLS_PER_MESSAGE * CELL_BYTES
        for at in range(0, max(len(data), 1), step):
            piece = pb.Cells(fold=grid.fold, cut=grid.cut, finer=grid.finer)
            piece.cells, piece.last = data[at : at + step], at + step >= len(data)
            self._wire.send(pb.Request(cells=piece))
        self._came = []
        self._method = Method.SKETCH

    def _replace(self, embedding: Embedding, gone: npt.NDArray[np.uint64]) -> None:
        """Replace our rows below the k of all that came, and those below these k."""
        assert self._came is not None
        ks = np.unique(np.concatenate([*self._came, gone]))
        self._difference = BelowKeys(ks, embedding)

    def _everything(self) -> pb.Reply:
        self._wire.send(pb.Request(whole=pb.Whole()))
        self._difference = Everything()
        return self._receive()

    def _refine(self, choice: Choice) -> pb.Reply:
        refined = ranges.refine(
            self._opening.sums.ranges,
            choice.coarsen,
            send=self._wire.send,
            receive=self._receive,
            list_rows=self._list_rows,
        )
        removed = refined.removed
        self._difference = Everything() if removed is None else ListedRows(removed)
        self._round_trips += refined.round_trips
        return self._receive()

    def _finished(self, reply: pb.Reply) -> Outcome:
        """Return the outcome that the end of the relation tells.

        Raises:
            MalformedMessage: the reply is no end, or the source's rows are not ours though nothing
                was said to differ.
        """
        if reply.WhichOneof("message") != "finished":
            raise MalformedMessage("The end of the relation was expected.")
        done, ours, difference = reply.finished, self._opening.sums.total, self._difference
        self.ended = True
        theirs = Digest(done.count, int.from_bytes(done.sum, "little"))
        if theirs == ours:
            difference = Equal()
        elif difference is None:
            if ours.count:
                raise MalformedMessage("The source finished, but its rows are not ours.")
            difference = ListedRows(Listing.joined(()))
        out = Outcome(
            difference,
            self._method if ours.count else Method.FULL,
            theirs=theirs,
            came=self._shipped,
            as_of=done.as_of,
            checked_at=utc_now(),
            consistency=done.consistency,
            changed=done.changed,
            vouched=done.vouched,
            scans=done.scans,
            rows_read=done.rows_read,
            round_trips=self._round_trips,
            frame_bytes=self._frame_bytes,
            row_security=RowSecurity.told(done),
        )
        grouped = self._opening.grouped
        if grouped is None or grouped.part is None:
            return out
        # What was not compared is as old as it is.
        return replace(out, theirs=theirs + grouped.rest, consistency="fuzzy")

    def _receive(self) -> pb.Reply:
        """The next reply that is neither progress nor rows; those are dealt with here."""
        while True:
            reply = self._wire.receive()
            kind = reply.WhichOneof("message")
            if kind == "progress":
                self._progress(reply.progress)
            elif kind == "rows":
                self._take(reply.rows.frame)
            elif kind == "refused":
                self.ended = True
                raise refusal(reply.refused)
            else:
                return reply

    def _take(self, frame: bytes) -> None:
        declared = self.admission.admit(frame)
        self._frame_bytes += len(frame)
        if self._came is not None:
            self._came.append(self._named(frame))
        self._keep(frame)
        self._shipped += declared
        self._shipping.rows = self._shipped.count
        self._progress(self._shipping)

    def _named(self, frame: bytes) -> npt.NDArray[np.uint64]:
        """The k of the rows of a frame that are inside, and may be ours, uint64 [n]. Raises
        FrameDamaged."""
        o = self._opening
        within = o.sketch or o.grouped
        assert within is not None
        keys = join(received(frames.decode(frame).columns, o.recipe))
        where = positions(keys, o.recipe, position_seed(o.fragment_key))
        ks, inside = within.embedding.embed(where, o.salt)
        return ks[inside] if self._ours is None else _among(ks[inside], self._ours)


def _described(sketch: Sketch, check: int) -> pb.Sketch:
    embedding = sketch.embedding
    return pb.Sketch(
        span=embedding.span,
        hashed=embedding.base is None,
        base=embedding.base or 0,
        third=sketch.third,
        fold=sketch.fold,
        check=check,
    )


def _among(ks: npt.NDArray[np.uint64], named: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Those of these k that are among the named, which ascend."""
    if not len(named):
        return named
    at = np.minimum(np.searchsorted(named, ks), len(named) - 1)
    found: npt.NDArray[np.uint64] = ks[named[at] == ks]
    return found


def _count(stuck: npt.NDArray[np.bool_] | None) -> int:
    return 0 if stuck is None else int(np.count_nonzero(stuck))


def _wrap(step: int) -> int:
    """The step modulo 2^64, signed."""
    return (step + (1 << 63)) % (1 << 64) - (1 << 63)

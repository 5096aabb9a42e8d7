"""The sketch method: the source subtracts our cells from its own and decodes the changes.

The opening sends cells where changes are expected. If they do not decode, the source estimates how
much differs, and `MoreCells` sends the cells of a finer grid that the source lacks. Each cell is
sent at most once.

The source needs our sums and cells only behind its scan. So where our rows are expected to be added
up before it is through, the opening goes first, and they follow (`LaterSide`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import Bools
from driftline.errors import InternalError
from driftline.limits import CELLS_PER_MESSAGE
from driftline.reconciliation.ranges import Partition, strata
from driftline.reconciliation.sketches import CELL_BYTES, Cells, Grid, unpack
from driftline.rows.digests import Digest
from driftline.wire.negotiation import LATER

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms, ShippedKeys
from warehouse_agent.methods.interface import Offers, Priced, StalledExchange, Step, WorkingCopy
from warehouse_agent.methods.ranges import BesideRanges, RangeSide, bitmap, slots_that_differ
from warehouse_agent.planning.candidates import stalled_ways
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import (
    Choice,
    Costs,
    Disagreement,
    Method,
    PricedChoice,
    offer_cells,
)
from warehouse_agent.planning.plan_inputs import PlanInputs, Whole
from warehouse_agent.planning.sketch_size import CellSample, Sketch, Stall, open_sketch
from warehouse_agent.tasks import digests
from warehouse_agent.transport.waiting import Requests

NO_CELLS, NO_KEYS = np.zeros(0, np.bool_), np.zeros(0, np.uint64)


class SketchOpening:
    """Open with a sketch, and with cells of it where changes are expected."""

    method, stalls = Method.SKETCH, True

    def supports(self, known: PlanInputs) -> bool:
        is_wanted = known.forced in {None, Method.SKETCH, Method.SINCE}
        return bool(known.rows) and is_wanted and isinstance(known.scope, Whole)

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        sketch = sized(replace(known, rows_lost=0), expected)
        return stalled_ways(known, sketch, changed, offers)

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> SketchPlan:
        return SketchPlan(known.partition, known.costs, sized(known, expected))


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """A sketch, and a partition in case it does not decode."""

    partition: Partition
    costs: Costs
    sketch: Sketch

    def reduce(self, copy: WorkingCopy) -> SketchSide | LaterSide:
        return LaterSide(self, copy) if copy.later else self.reduced(copy)

    def reduced(self, copy: WorkingCopy) -> SketchSide:
        """Add up the working copy in cells and in ranges; one step."""
        sums = digests.reduced(
            copy.steps, copy.files, copy.layout, self.partition, copy.salt, self.sketch
        )
        ranges = RangeSide(self.partition, sums.ranges, copy, self.costs)
        return SketchSide(ranges, self.sketch, sums.cells)


@dataclass(frozen=True, slots=True)
class CellSide(BesideRanges):
    """Our side in the cells of a sketch, and in ranges in case it does not decode."""

    sketch: Sketch
    cells: Cells

    def described(self) -> pb.Sketch:
        """Return the sketch as a message."""
        return described(self.sketch, self.cells.check)

    def send(self, grid: Grid | None, before: Grid | None, stuck: Bools) -> Iterator[pb.Request]:
        """Send the cells of a grid that the source lacks; none: no cells.

        Args:
            before: the grid of which the source has all cells.
            stuck: cells of `before` that did not decode, bool [cells].
        """
        if grid is None:
            return
        data = self.cells.children(before, grid, stuck).to_bytes()
        step = CELLS_PER_MESSAGE * CELL_BYTES
        for at in range(0, max(len(data), 1), step):
            piece = pb.Cells(fold=grid.fold, cut=grid.cut, finer=grid.finer)
            piece.cells, piece.last = data[at : at + step], at + step >= len(data)
            yield pb.Request(cells=piece)

    def strata(self, terms: ExchangeTerms) -> bytes:
        """Return the strata of our cells; empty if they may be left out, and are not expected to be
        needed."""
        self.cells.reduce()
        if terms.is_brief and not self.sketch.stalls:
            return b""
        return strata(self.cells.r, terms.salt).tobytes()

    def stalled(
        self,
        verdict: pb.Verdict,
        grid: Grid | None,
        go_on: Callable[..., Requests[Step]],
        terms: ExchangeTerms,
    ) -> StalledExchange:
        """Return the state after a verdict about the cells of this grid; `go_on` sends others.

        Raises MalformedMessage.
        """
        stuck = NO_CELLS if grid is None else bitmap(verdict.stuck, len(grid))
        sample = None
        if verdict.sample:
            sample = CellSample(len(verdict.sample), self.cells.differing(verdict.sample))
        stall = Stall(self.sketch, grid, int(np.count_nonzero(stuck)), sample)
        more_cells = partial(go_on, before=grid, stuck=stuck)
        differing = slots_that_differ(verdict, self.cells.r, terms.salt)
        at = self.ranges.disagreement(verdict, differing, stall)
        return StalledExchange(at, self.ranges, more_cells)


class SketchSide(CellSide):
    """Our rows in cells."""

    __slots__ = ()

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send the total and the sketch; stall if the source cannot decode it."""
        said = pb.Open(strata=self.strata(terms), sketch=self.described())
        yield terms.opening(self.compared, self.ranges.partition, said)
        return (yield from self._go_on(terms, self.sketch.sent))

    def follow(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send what the opening did not have; go on as `open` does."""
        slots, check = self.strata(terms), self.cells.check
        sums = pb.Sums(sum=self.compared.sum_bytes(), strata=slots, check=check)
        yield pb.Request(sums=sums)
        return (yield from self._go_on(terms, self.sketch.sent))

    def _go_on(
        self,
        terms: ExchangeTerms,
        grid: Grid | None,
        before: Grid | None = None,
        stuck: Bools = NO_CELLS,
    ) -> Requests[Step]:
        """Send the cells of a grid that the source lacks; receive its answer."""
        yield from self.send(grid, before, stuck)
        keys = ShippedKeys(terms, self.sketch.embedding)
        reply = yield None if grid is None else keys.take
        match reply.WhichOneof("message"):
            case "verdict":
                return self.stalled(reply.verdict, grid, self._go_on, terms)
            case "deleted":
                span, most = self.sketch.embedding.span, self.sketch.cells
                found = keys.replaced(unpack(reply.deleted.ks, span=span, count_max=most))
                return terms.finished((yield keys.take), self.compared, found, Method.SKETCH)
        is_replaced = terms.is_brief and keys.came and not reply.finished.equal
        replaced = keys.replaced(NO_KEYS) if is_replaced else None
        return terms.finished(reply, self.compared, replaced, Method.SKETCH)


@dataclass(slots=True)
class LaterSide:
    """Our rows in cells, which are added up when they are first needed: by `open` while the source
    scans. An error ends the exchange."""

    plan: SketchPlan
    copy: WorkingCopy
    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()
    _side: SketchSide | None = field(default=None, init=False)

    @property
    def rows(self) -> int:
        """Return the number of our rows that are compared."""
        return self.copy.rows

    @property
    def compared(self) -> Digest:
        """Return the digest of all our rows."""
        return self._reduced().compared

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Send the sketch, add up our rows, and send what they add up to."""
        said = pb.Open(features=(LATER,), sketch=described(self.plan.sketch), later=True)
        opening = terms.opening(Digest(self.rows), self.plan.partition, said)
        opening.open.ClearField("sum")
        yield opening
        return (yield from self._reduced().follow(terms))

    def _reduced(self) -> SketchSide:
        if self._side is None:
            with self.copy.phase("reduce"):
                self._side = self.plan.reduced(self.copy)
        return self._side


class MoreCells:
    """Continue with the missing cells of a finer grid."""

    method = Method.SKETCH

    def offer(self, at: Disagreement) -> PricedChoice | None:
        return offer_cells(at)

    def go_on(self, at: StalledExchange, choice: Choice, terms: ExchangeTerms) -> Requests[Step]:
        """Send the cells of the chosen grid. Raises InternalError: there is no sketch."""
        if at.more_cells is None or choice.grid is None:
            raise InternalError("Cells were chosen where there is no sketch.")
        return (yield from at.more_cells(terms, choice.grid))


def described(sketch: Sketch, check: int = 0) -> pb.Sketch:
    """Return a sketch as a message; `check` is that of our rows, 0 if it follows."""
    embedding = sketch.embedding
    return pb.Sketch(
        span=embedding.span,
        hashed=embedding.base is None,
        base=embedding.base or 0,
        third=sketch.third,
        fold=sketch.fold,
        check=check,
    )


def sized(known: PlanInputs, expected: ChangeForecast | None) -> Sketch:
    """Return the sketch of a refresh that expects these changes."""
    return open_sketch(
        rows=(known.rows or 0) + known.rows_lost,
        bounds=known.bounds,
        expected=expected,
        sure=known.rows_lost,
        prices=known.prices,
        line=known.line,
    )

"""The sketch method: cells that the source subtracts from its own, and decodes to the changes.

Cells go up with the opening where the number of changes is predicted. When they do not decode, the
source says how much seems to differ, and `MoreCells` sends those of a finer grid that it has not.
Each cell is sent at most once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import Bools
from driftline.digests import Digest
from driftline.errors import InternalError
from driftline.limits import CELLS_PER_MESSAGE
from driftline.ranges import Partition, strata
from driftline.sketches import CELL_BYTES, Cells, Grid, unpack

from warehouse_agent.methods.conversation import ShippedKeys, Talk
from warehouse_agent.methods.interface import Offers, Stalled, Step, WorkingCopy
from warehouse_agent.methods.ranges import RangeSide, bitmap
from warehouse_agent.planning.candidates import Candidate, Known, Whole, stalled_ways
from warehouse_agent.planning.change_forecast import Expected
from warehouse_agent.planning.choice import (
    Choice,
    Costs,
    Disagreement,
    Method,
    PricedChoice,
    offer_cells,
)
from warehouse_agent.planning.sketch_size import Sample, Sketch, Stall, open_sketch
from warehouse_agent.tasks import digests


class SketchOpening:
    """Open with a sketch; with cells of it where changes are expected."""

    method, stalls = Method.SKETCH, True

    def supports(self, known: Known) -> bool:
        """Return True if there are rows, compared all at once, and no other method is asked for."""
        is_wanted = known.forced in {None, Method.SKETCH}
        return bool(known.rows) and is_wanted and isinstance(known.scope, Whole)

    def price(
        self, known: Known, expected: Expected | None, changed: int, offers: Offers
    ) -> tuple[tuple[Candidate, ...], str]:
        """Return the ways from this sketch, sized without the rows that were lost."""
        sketch = _sized(replace(known, rows_lost=0), expected)
        return stalled_ways(known, sketch, changed, offers)

    def plan(self, known: Known, expected: Expected | None) -> SketchPlan:
        """Return a sketch for the expected changes and the rows that were lost."""
        return SketchPlan(known.partition, known.costs, _sized(known, expected))


@dataclass(frozen=True, slots=True)
class SketchPlan:
    """A sketch, and a partition should it not decode."""

    partition: Partition
    costs: Costs
    sketch: Sketch

    def reduce(self, copy: WorkingCopy) -> SketchSide:
        """Add up the working copy in cells and in ranges; one Spark job."""
        sums = digests.reduced(
            copy.spark, copy.files, copy.layout, self.partition, copy.salt, self.sketch
        )
        ranges = RangeSide(self.partition, sums.ranges, copy, self.costs)
        return SketchSide(ranges, self.sketch, sums.cells)


@dataclass(frozen=True, slots=True)
class SketchSide:
    """Our side in the cells of a sketch, and in ranges should it not decode."""

    ranges: RangeSide
    sketch: Sketch
    cells: Cells
    rest = Digest()

    @property
    def compared(self) -> Digest:
        """The digest of our rows."""
        return self.ranges.compared

    def notes(self) -> dict[str, object]:
        """Return no notes."""
        return {}

    def open(self, talk: Talk) -> Step:
        """Open with a sketch, and with cells of it where it says so."""
        self.cells.reduce()
        talk.open(
            self.compared,
            self.ranges.partition,
            strata=strata(self.cells.r, talk.terms.salt).tobytes(),
            sketch=_described(self.sketch, self.cells.check),
        )
        grid = self.sketch.sent
        if grid is None:
            return self._heard(talk, None, None)
        return self._send_cells(talk, grid, before=None, stuck=np.zeros(0, np.bool_))

    def _send_cells(self, talk: Talk, grid: Grid, *, before: Grid | None, stuck: Bools) -> Step:
        """Send the cells of a grid that the source has not after those of `before`, of which it
        could not decode the stuck ones, bool [cells]."""
        data = self.cells.children(before, grid, stuck).to_bytes()
        step = CELLS_PER_MESSAGE * CELL_BYTES
        for at in range(0, max(len(data), 1), step):
            piece = pb.Cells(fold=grid.fold, cut=grid.cut, finer=grid.finer)
            piece.cells, piece.last = data[at : at + step], at + step >= len(data)
            talk.send(pb.Request(cells=piece))
        return self._heard(talk, grid, talk.collect(self.sketch.embedding))

    def _heard(self, talk: Talk, grid: Grid | None, keys: ShippedKeys | None) -> Step:
        """Hear what the source makes of the cells of this grid."""
        reply = talk.receive()
        kind = reply.WhichOneof("message")
        if kind == "verdict":
            return self._stalled(reply.verdict, grid)
        if kind == "deleted" and keys is not None:
            span, most = self.sketch.embedding.span, self.sketch.cells
            found = keys.replaced(unpack(reply.deleted.ks, span=span, count_max=most))
            return talk.finished(talk.receive(), found, Method.SKETCH)
        return talk.finished(reply, None, Method.SKETCH)

    def _stalled(self, verdict: pb.Verdict, grid: Grid | None) -> Stalled:
        stuck = np.zeros(0, np.bool_) if grid is None else bitmap(verdict.stuck, len(grid))
        sample = None
        if verdict.sample:
            sample = Sample(len(verdict.sample), self.cells.differing(verdict.sample))
        stall = Stall(self.sketch, grid, int(np.count_nonzero(stuck)), sample)
        more_cells = partial(self._send_cells, before=grid, stuck=stuck)
        return Stalled(self.ranges.disagreement(verdict, stall), self.ranges, more_cells)


class MoreCells:
    """Continue with the cells that are missing."""

    method = Method.SKETCH

    def offer(self, at: Disagreement) -> PricedChoice | None:
        """Return the offer of cells that mostly decode; None: there are none."""
        return offer_cells(at)

    def go_on(self, at: Stalled, choice: Choice, talk: Talk) -> Step:
        """Send the cells of the chosen grid. Raises InternalError: there is no sketch."""
        if at.more_cells is None or choice.grid is None:
            raise InternalError("Cells were chosen where there is no sketch.")
        return at.more_cells(talk, choice.grid)


def _sized(known: Known, expected: Expected | None) -> Sketch:
    return open_sketch(
        rows=(known.rows or 0) + known.rows_lost,
        bounds=known.bounds,
        expected=expected,
        sure=known.rows_lost,
        prices=known.prices,
        line=known.line,
    )


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

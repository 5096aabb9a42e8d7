"""A load or copy that was cut goes on: list what is staged by chunks, and take every other row.

The next version is made of the staged rows and of those that come, and of no published row.
Whatever has changed at the source since, a chunk that it met is one that it has now: the other
staged rows are removed. The total of the published rows stays here: if it is the source's, nothing
is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from driftline import wire_pb2 as pb
from driftline.arrays import U64
from driftline.limits import CHUNKS_PER_MESSAGE
from driftline.rows.digests import Digest
from driftline.wire.negotiation import CHUNKS

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.interface import Offers, Priced, Step, WorkingCopy
from warehouse_agent.methods.ranges import bitmap, no_strata
from warehouse_agent.planning.candidates import rest_of_copy, rest_of_load
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import NAMES, Method, everything
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.staged_chunks import StagedChunks
from warehouse_agent.transport.waiting import Requests


class ResumedLoad:
    """Open with the list of what is staged, and take every other row of the source."""

    method, stalls = Method.FULL, False

    def supports(self, known: PlanInputs) -> bool:
        return known.unstaged is not None

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        assert known.unstaged is not None, "it is priced where it is supported"
        name = NAMES[self.method]
        if known.version is None:
            return (rest_of_load(known, known.unstaged),), name
        return rest_of_copy(known, known.unstaged), name

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> ListPlan:
        return ListPlan()


class ListPlan:
    """The plan to list what is staged."""

    __slots__ = ()

    def reduce(self, copy: WorkingCopy) -> ListedSide:
        """Add up the published rows; one step, if there are any."""
        assert copy.chunks is not None, "it is planned for staged chunks alone"
        if not copy.rows:
            return ListedSide(copy.chunks)
        total = digests.total(copy.steps, copy.files, copy.layout, copy.salt)
        return ListedSide(copy.chunks, total)


@dataclass(frozen=True, slots=True)
class ListedSide:
    """Our chunks, which the source is not to send, and the total of the published rows, of which it
    is told nothing."""

    chunks: StagedChunks
    compared: Digest = field(default_factory=Digest)
    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    @property
    def rows(self) -> int:
        """Return the number of published rows."""
        return self.compared.count

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Ask for every row whose chunk is not listed."""
        listed = self.chunks.listed
        yield terms.opening(
            Digest(),
            everything(),
            pb.Open(features=(CHUNKS,), strata=no_strata(terms), chunks=True),
        )
        yield from _listed(self.chunks.shift, listed)
        reply = yield None
        unmet = self.chunks.unmet(bitmap(reply.finished.met, len(listed)))
        return terms.finished(reply, self.compared, unmet, Method.FULL)


def _listed(shift: int, listed: U64) -> Iterator[pb.Request]:
    """Yield a list of chunks, uint64 [n] ascending, in pieces."""
    for at in range(0, max(len(listed), 1), CHUNKS_PER_MESSAGE):
        end = at + CHUNKS_PER_MESSAGE
        piece = listed[at:end].astype("<u8").tobytes()
        yield pb.Request(chunks=pb.Chunks(shift=shift, digests=piece, last=end >= len(listed)))

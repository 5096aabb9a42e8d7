"""A load that was cut goes on: list what is staged by chunks, and take every other row.

Our rows are those of the staged frames, and no published version has any. Whatever has changed at
the source since, a chunk that it met is one that it has now: the rest of ours is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from warehouse_agent.planning.candidates import PlanInputs, Unstaged, load_rest
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import NAMES, Method, everything
from warehouse_agent.tasks.staged_chunks import StagedChunks
from warehouse_agent.transport.waiting import Requests


class ResumedLoad:
    """Open with the list of what is staged, and take every other row of the source."""

    method, stalls = Method.FULL, False

    def supports(self, known: PlanInputs) -> bool:
        return isinstance(known.scope, Unstaged)

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        return (load_rest(known),), NAMES[self.method]

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> ListPlan:
        return ListPlan()


class ListPlan:
    """The plan to list what is staged."""

    __slots__ = ()

    def reduce(self, copy: WorkingCopy) -> ListedSide:
        """Return the list: the staged rows were added up when they were taken up."""
        assert copy.chunks is not None, "it is planned for staged chunks alone"
        return ListedSide(copy.chunks)


@dataclass(frozen=True, slots=True)
class ListedSide:
    """Our chunks, which the source is not to send; it is told of no row of ours."""

    chunks: StagedChunks
    rows: ClassVar[int] = 0
    compared: ClassVar[Digest] = Digest()
    rest: ClassVar[Digest] = Digest()
    updates_left: ClassVar[float] = 0.0
    turn: ClassVar[NextPartNote] = NextPartNote()

    def open(self, terms: ExchangeTerms) -> Requests[Step]:
        """Ask for every row whose chunk is not listed."""
        listed = self.chunks.listed
        yield terms.opening(
            Digest(),
            everything(),
            pb.Open(features=(CHUNKS,), strata=no_strata(terms.salt), chunks=True),
        )
        yield from _listed(self.chunks.shift, listed)
        done = (yield None).finished
        unmet = self.chunks.unmet(bitmap(done.met, len(listed)))
        theirs = Digest(done.count, int.from_bytes(done.sum, "little"))
        return terms.outcome(done, unmet, Method.FULL, theirs)


def _listed(shift: int, digests: U64) -> Iterator[pb.Request]:
    """Yield a list of chunks, uint64 [n] ascending, in pieces."""
    for at in range(0, max(len(digests), 1), CHUNKS_PER_MESSAGE):
        end = at + CHUNKS_PER_MESSAGE
        piece = digests[at:end].astype("<u8").tobytes()
        yield pb.Request(chunks=pb.Chunks(shift=shift, digests=piece, last=end >= len(digests)))

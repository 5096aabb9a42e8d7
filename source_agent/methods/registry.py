"""The comparison methods of this source, in the order in which they are tried on an opening."""

from __future__ import annotations

from collections.abc import Mapping

from driftline import wire_pb2 as pb

from source_agent.methods.claimed import ClaimRead
from source_agent.methods.full_copy import EverythingSent, send_again
from source_agent.methods.groups import GroupsCompared
from source_agent.methods.interface import Continuing, MethodAnswer
from source_agent.methods.ranges import RangesCompared, refine
from source_agent.methods.request_validation import ParsedOpening
from source_agent.methods.since import SinceRead
from source_agent.methods.sketch import SketchDecoded

# Marks come first: their openings have ranges, too. Groups and sketches refuse an opening of no
# rows, which else is a load. Ranges come last: every opening has ranges.
ANSWERS: tuple[type[MethodAnswer], ...] = (
    ClaimRead,
    SinceRead,
    GroupsCompared,
    SketchDecoded,
    EverythingSent,
    RangesCompared,
)
# By the kind of the request that asks for them.
CONTINUATIONS: Mapping[str, Continuing] = {"whole": send_again, "digests": refine}


def answer_to(opening: ParsedOpening) -> MethodAnswer:
    """Return the answer of the first method that recognises this opening; raises as `match`."""
    return next(answer for method in ANSWERS if (answer := method.match(opening)) is not None)


def continuation_of(request: pb.Request) -> Continuing:
    """Return the continuation of this request: `refine`, unless another one is asked for."""
    return CONTINUATIONS.get(request.WhichOneof("message") or "", refine)

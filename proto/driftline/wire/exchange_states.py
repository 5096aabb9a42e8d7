"""The states of an exchange about one relation: which message may follow which.

`TABLE` is the one place that says it, for both sides, as does the page (protocol, section 9): a
message moves its sender when it is sent and its receiver when it comes, so both are in one state.
`StateTracker.run` runs either side, and refuses a message that the table does not have. The
methods check what a message holds.

Rules beside the table:

1. `Progress` and `Refused` may come from the source in every state but idle. `Refused` ends the
   relation.
2. A message in pieces counts once, with its last piece. Nothing comes between two pieces.
3. `Rows` never change the state. The table says where a source sends them. A warehouse takes them
   in every state: it bounds them, and their digest has to fit.

Rejected: a table for each method. The ways meet after the answer to an opening, and a reader would
compare the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from enum import Enum
from typing import Final, TypeVar

from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage


class ExchangeState(Enum):
    """States of one relation, by the name that the page gives them."""

    IDLE = "idle"
    SUMS_FOLLOW = "sums follow"
    SUMS_AND_CELLS_FOLLOW = "sums and cells follow"
    CELLS_FOLLOW = "cells follow"
    KEY_CELLS_FOLLOW = "cells of keys follow"
    UNITS_FOLLOW = "units follow"
    CHUNKS_FOLLOW = "chunks follow"
    RANGES = "ranges opened"
    SKETCH = "sketch opened"
    CELLS = "cells sent"
    MARK = "mark opened"
    UNITS = "units sent"
    CHUNKS = "chunks sent"
    DIFFER = "rows differ"
    STUCK = "cells stuck"
    DIGESTS = "digests sent"
    UNITS_DIFFER = "units differ"
    HASHES = "hashes follow"
    HASHED = "hashes sent"
    ASKED = "wanted rows follow"
    ENDING = "end follows"


_S = ExchangeState
# By state, the messages that may follow and the state after each. Two words are a message with a
# property; they go before the message alone. A refusal names the last message of a state.
TABLE: Final[Mapping[ExchangeState, Mapping[str, ExchangeState]]] = {
    _S.IDLE: {
        "open later": _S.SUMS_FOLLOW,
        "open later+cells": _S.SUMS_AND_CELLS_FOLLOW,
        "open sketch": _S.SKETCH,
        "open sketch+cells": _S.CELLS_FOLLOW,
        "open mark": _S.MARK,
        "open mark+cells": _S.KEY_CELLS_FOLLOW,
        "open grouping": _S.UNITS_FOLLOW,
        "open chunks": _S.CHUNKS_FOLLOW,
        "open": _S.RANGES,
    },
    _S.SUMS_FOLLOW: {"sums": _S.SKETCH},
    _S.SUMS_AND_CELLS_FOLLOW: {"sums": _S.CELLS_FOLLOW},
    _S.CELLS_FOLLOW: {"cells": _S.CELLS},
    _S.KEY_CELLS_FOLLOW: {"cells": _S.MARK},
    _S.UNITS_FOLLOW: {"units": _S.UNITS},
    _S.CHUNKS_FOLLOW: {"chunks": _S.CHUNKS},
    _S.RANGES: {"rows": _S.RANGES, "verdict": _S.DIFFER, "finished": _S.IDLE},
    _S.SKETCH: {"verdict": _S.STUCK, "finished": _S.IDLE},
    _S.CELLS: {
        "rows": _S.CELLS,
        "verdict": _S.STUCK,
        "deleted": _S.ENDING,
        "finished": _S.IDLE,
    },
    _S.MARK: {
        "rows": _S.MARK,
        "verdict unmarked": _S.DIFFER,
        "verdict": _S.STUCK,
        "deleted": _S.ENDING,
        "finished": _S.IDLE,
    },
    _S.UNITS: {
        "rows": _S.UNITS,
        "deleted": _S.ENDING,
        "mismatch": _S.UNITS_DIFFER,
        "finished": _S.IDLE,
    },
    _S.CHUNKS: {"rows": _S.CHUNKS, "finished": _S.IDLE},
    _S.DIFFER: {"whole": _S.ENDING, "digests": _S.DIGESTS},
    _S.STUCK: {"cells": _S.CELLS, "whole": _S.ENDING, "digests": _S.DIGESTS},
    _S.DIGESTS: {"mismatch": _S.HASHES},
    _S.UNITS_DIFFER: {"deleted": _S.HASHES},
    _S.HASHES: {"rows": _S.HASHES, "hashes_end": _S.ENDING, "row_hashes": _S.HASHED},
    _S.HASHED: {"hashes_end": _S.ASKED, "row_hashes": _S.HASHED},
    _S.ASKED: {"wanted": _S.ENDING},
    _S.ENDING: {"rows": _S.ENDING, "finished": _S.IDLE},
}
_IN_PIECES: Final = {"cells", "chunks", "units", "digests", "wanted", "mismatch"}
_EXPECTED: Final = {
    "finished": "The end of the relation was expected.",
    "mismatch": "The differing ranges were expected.",
    "deleted": "The deleted keys were expected.",
    "row_hashes": "Row hashes were expected.",
}


Sent = TypeVar("Sent", bound=pb.Request | pb.Reply)
Came = TypeVar("Came", bound=pb.Request | pb.Reply)
T = TypeVar("T")
Take = Callable[[bytes], None]  # takes a frame of rows


class StateTracker:
    """One relation of an exchange, as one side follows it."""

    def __init__(self) -> None:
        self.state, self._piece = ExchangeState.IDLE, ""

    def run(
        self, side: Generator[Sent | Take | None, Came, T], receive: Callable[[Take | None], Came]
    ) -> Generator[Sent, None, T]:
        """Yield the messages that a side sends. Where it yields none, it is sent one that came.

        receive: waits for the next message, and is given what the side yielded: what takes frames
        that come before. Raises MalformedMessage: the table does not have the message that came.
        """
        came: Came | None = None
        with closing(side):
            while True:
                try:
                    step = next(side) if came is None else side.send(came)
                except StopIteration as end:
                    found: T = end.value
                    return found
                came = None
                if step is not None and not callable(step):
                    is_in_place = self.follow(step)
                    assert is_in_place, f"no {step.WhichOneof('message')} in {self.state}"
                    yield step
                elif not self.follow(came := receive(step)):
                    kind = self._piece or [*TABLE[self.state]][-1]
                    text = _EXPECTED.get(kind, f"A message of {kind} was expected.")
                    raise MalformedMessage(text)

    def follow(self, message: pb.Request | pb.Reply) -> bool:
        """Move by a message; return False, and stay, if the table does not have it here."""
        kind, name = message.WhichOneof("message") or "", name_of(message, self.state)
        if kind in {"rows", "progress"}:
            return True
        if name not in TABLE[self.state] or self._piece not in {"", kind}:
            return False
        is_piece = kind in _IN_PIECES and not getattr(message, kind).last
        self._piece = kind if is_piece else ""
        if not is_piece:
            self.state = TABLE[self.state][name]
        return True


def name_of(message: pb.Request | pb.Reply, state: ExchangeState) -> str:
    """Return the name of a message in a state: with its property, if the table has it so there."""
    kind = message.WhichOneof("message") or ""
    name = f"{kind} {_property(message)}"
    return name if name in TABLE[state] else kind


def _property(message: pb.Request | pb.Reply) -> str:
    """Return what a message has on which the next state may depend, empty: nothing."""
    if isinstance(message, pb.Reply):
        return "unmarked" if message.verdict.unmarked else ""
    said = message.open
    if said.HasField("grouping"):
        return "grouping"
    if said.chunks:
        return "chunks"
    if not said.since.mark and not said.HasField("sketch"):
        return ""
    kind, sketch = "later" if said.later else "sketch", said.sketch
    if said.since.mark:
        kind, sketch = "mark", said.since.keys
    return f"{kind}+cells" if sketch.fold else kind

"""Rows on their way through the agent, and what is remembered of those that differ.

Of the rows of differing ranges the order of arrival is kept, between their hashes and the reply, so
that a bitmap over the hashes names rows. Their bytes are held while ROWS_HELD_BYTES last; beyond
that only hashes and positions are, and the rows are read again. Bounded by ROWS_HELD_BYTES and, for
the hashes, by ROW_HASHES_MAX: never by the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from driftline.columns import Block
from driftline.digests import Mixed
from driftline.limits import ROWS_HELD_BYTES

Positions = npt.NDArray[np.int64]


class Batch:
    """Rows as they come from the engine, with what is derived from them.

    Mixed fingerprints take a third of the time that is spent on a row. They are made when they are
    first asked for, and of chosen rows alone where only those are wanted (`take`).
    """

    __slots__ = ("_mixed", "block", "positions")

    def __init__(
        self, block: Block, positions: Positions, mixed: Mixed | Callable[[Block], Mixed]
    ) -> None:
        """`mixed`: of these rows, or what makes them of any of these rows."""
        self.block, self.positions, self._mixed = block, positions, mixed

    @property
    def mixed(self) -> Mixed:
        if not isinstance(self._mixed, Mixed):
            self._mixed = self._mixed(self.block)
        return self._mixed

    def take(self, chosen: npt.NDArray[np.bool_]) -> Batch:
        """The chosen rows, bool [rows]."""
        if chosen.all():
            return self
        mixed = self._mixed
        if isinstance(mixed, Mixed):
            mixed = Mixed(mixed.m0[chosen], mixed.m1[chosen])
        return Batch(self.block.take(chosen), self.positions[chosen], mixed)


@dataclass
class Identified:
    """Rows of differing ranges in arrival order, their ranges numbered by `slots`.

    `blocks` is None from the moment on when they did not fit.
    """

    slots: list[npt.NDArray[np.int32]] = field(default_factory=list)
    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    positions: list[Positions] = field(default_factory=list)
    blocks: list[Block] | None = field(default_factory=list)
    held_bytes: int = 0

    def add(self, batch: Batch, slots: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> None:
        """Note the rows of a batch; hold their bytes while the budget lasts."""
        if not len(slots):
            return
        self.slots.append(slots.astype(np.int32))  # below RANGES_MAX
        self.hashes.append(batch.mixed.m0)
        self.positions.append(batch.positions)
        if self.blocks is None:
            return
        self.held_bytes += len(batch.block.buffer)
        if self.held_bytes > ROWS_HELD_BYTES:
            self.blocks = None
        else:
            self.blocks.append(batch.block)

    def in_order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Arrival numbers and hashes, range by range."""
        order = np.argsort(np.concatenate(self.slots), kind="stable")
        return order, np.concatenate(self.hashes)[order]


def up_to(
    left: npt.NDArray[np.int64], at: npt.NDArray[np.int64], named: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Those of the named rows, bool [rows], of which some are `left` at their place; counts down.

    Rows that are equal are shipped as often as was asked for, not as often as there are.
    """
    rows = np.flatnonzero(named)
    order = np.argsort(at[rows], kind="stable")
    places = at[rows][order]
    rank = np.arange(len(places)) - np.searchsorted(places, places)
    chosen = rank < left[places]
    np.subtract.at(left, places[chosen], 1)
    out = np.zeros(len(at), np.bool_)
    out[rows[order[chosen]]] = True
    return out


def joined(positions: Positions) -> tuple[Positions, Positions]:
    """First and last of ascending positions, neighbours joined into one range, int64 [n] each."""
    if not len(positions):
        return positions, positions
    begins = np.flatnonzero(np.diff(positions, prepend=positions[:1] - 2) > 1)
    ends = np.append(begins[1:], len(positions)) - 1
    return positions[begins], positions[ends]

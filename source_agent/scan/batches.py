"""Batches of rows on their way through the agent, and rows held until they are wanted.

While the warehouse examines row hashes, the order of arrival is kept, so that a bitmap over the
hashes identifies rows. Their bytes are held if they fit in ROWS_HELD_BYTES; if not, only hashes and
positions are held, and the rows are read again. The hashes are bounded by ROW_HASHES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from driftline.arrays import U64, Bools, Integers, Positions
from driftline.limits import ROWS_HELD_BYTES
from driftline.rows.columns import Block
from driftline.rows.digests import MixedFingerprints

Locators = U64 | Block  # of rows: numbers of `LocatorReads`, [rows], or their keys, end to end


class Batch:
    """Rows as the engine yields them, their positions, int64 [rows], and mixed fingerprints.

    `locators` say where they lie; None: the read does not tell. Mixed fingerprints
    take a third of the time of a row, so they are computed when first used; if rows are chosen
    before (`take`), only for those.
    """

    __slots__ = ("_mixed", "block", "locators", "positions")

    def __init__(
        self,
        block: Block,
        positions: Positions,
        mixed: MixedFingerprints | Callable[[Block], MixedFingerprints],
        locators: Locators | None = None,
    ) -> None:
        """Make a batch; `mixed` may be a function that computes them for some of the rows."""
        self.block, self.positions, self._mixed = block, positions, mixed
        self.locators = locators

    @property
    def mixed(self) -> MixedFingerprints:
        """Mixed fingerprints of all rows."""
        if not isinstance(self._mixed, MixedFingerprints):
            self._mixed = self._mixed(self.block)
        return self._mixed

    def take(self, chosen: Bools) -> Batch:
        """Return the chosen rows, bool [rows]."""
        if chosen.all():
            return self
        mixed = self._mixed
        if isinstance(mixed, MixedFingerprints):
            mixed = MixedFingerprints(mixed.m0[chosen], mixed.m1[chosen])
        locators = self.locators
        if locators is not None:
            locators = locators.take(chosen) if isinstance(locators, Block) else locators[chosen]
        return Batch(self.block.take(chosen), self.positions[chosen], mixed, locators)


Batches = Iterator[Batch]


@dataclass
class IdentifiedRows:
    """Rows whose hashes are sent, in order of arrival; `slots` are the ranges that they are in.

    `blocks` becomes None as soon as the rows do not fit in ROWS_HELD_BYTES.
    """

    slots: list[npt.NDArray[np.int32]] = field(default_factory=list)
    hashes: list[U64] = field(default_factory=list)
    positions: list[Positions] = field(default_factory=list)
    blocks: list[Block] | None = field(default_factory=list)
    held_bytes: int = 0

    def add(self, batch: Batch, slots: Integers | npt.NDArray[np.int32]) -> None:
        """Add the rows of a batch, in the ranges `slots`, [rows]; hold their bytes if they fit."""
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

    def in_order(self) -> tuple[Integers, U64]:
        """Return arrival numbers and hashes, int64 and uint64 [rows], range by range."""
        order = np.argsort(np.concatenate(self.slots), kind="stable")
        return order, np.concatenate(self.hashes)[order]


def choose_counted(left: Integers, at: Integers, named: Bools) -> Bools:
    """Return the rows to send, bool [rows]: equal rows as often as the warehouse asked for them.

    left: how often each hash is still wanted, int64 [hashes], reduced here; at: the hash of every
    row, int64 [rows], an index into `left`; named: rows whose hash is among them, bool [rows].
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


def join_neighbours(positions: Positions) -> tuple[Positions, Positions]:
    """Return ascending positions as ranges, neighbours joined: first and last, int64 [n] each."""
    if not len(positions):
        return positions, positions
    # As unsigned integers, because two positions may be more than 2^63 apart.
    gaps = np.diff(positions, prepend=positions[:1] - 2).view(np.uint64)
    begins = np.flatnonzero(gaps > 1)
    ends = np.append(begins[1:], len(positions)) - 1
    return positions[begins], positions[ends]

"""One tile of a relation: the rows whose integer key lies between two bounds, read by index.

The warehouse opens an exchange for each tile (protocol, section 9). A tile is read once, by one
short range read, and held for the rest of the exchange. So a table that changes all the time is
compared in one snapshot, and where readers block writers the transaction ends before a row is
hashed. At most TILE_HELD_BYTES are held; the rows of a larger tile are read again.

Source: Carnes and Hanson, sections 3.4 and 3.6. They lock pages of a few ranges; here no lock
outlives the read.
"""

from __future__ import annotations

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import Positions
from driftline.digests import Salt
from driftline.errors import ConfigurationError, MalformedMessage
from driftline.limits import TILE_HELD_BYTES

from source_agent.engines.interface import Session, Shape
from source_agent.scan.batches import Batch, Batches
from source_agent.scan.reader import Reader, Tally

_DERIVED_BYTES = 48  # of a row besides its bytes: offsets, position, mixed fingerprint

Bounds = tuple[int, int]


def within_of(opening: pb.Open, shape: Shape) -> Bounds | None:
    """Return the first and last position of the tile in an opening; None for the whole relation.

    Raises MalformedMessage for descending bounds, ConfigurationError for a relation without index.
    """
    if not opening.HasField("within"):
        return None
    first, last = opening.within.first, opening.within.last
    if first > last:
        raise MalformedMessage("The bounds of a tile must ascend.")
    if not (shape.recipe.integer_key and shape.indexed):
        key = ", ".join(column.name for column in shape.recipe.key)
        raise ConfigurationError(
            f"The relation cannot be read in tiles: its key ({key}) is not one integer with an "
            "index.",
            where=shape.relation.name,
            remedy="Remove `incremental` from the fragment, or ask the DBA for an index.",
        )
    return first, last


def reader_of(session: Session, shape: Shape, opening: pb.Open, salt: Salt, tally: Tally) -> Reader:
    """Return the reader of the rows in an opening; read nothing. Raises as `within_of`."""
    within, key = within_of(opening, shape), opening.fragment_key
    if within is None:
        return Reader(session, shape, fragment_key=key, salt=salt, tally=tally)
    return TileReader(session, shape, within, fragment_key=key, salt=salt, tally=tally)


class TileReader(Reader):
    """A `Reader` for which only the rows of one tile exist. within: first and last position."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        within: Bounds,
        *,
        fragment_key: bytes,
        salt: Salt,
        tally: Tally,
    ) -> None:
        super().__init__(session, shape, fragment_key=fragment_key, salt=salt, tally=tally)
        self._first, self._last = (np.array([bound], np.int64) for bound in within)
        self._held: list[Batch] | None = None
        tally.rows_expected = 0  # the engine's estimate is of the whole relation

    def scan(
        self,
        *,
        ordered: bool = False,  # noqa: ARG002 - a tile is read by index, so always in key order
    ) -> Batches:
        if self._held is not None:
            return iter(self._held)
        return self._read(self._first, self._last, is_whole=True)

    def scan_hashes(self) -> Batches:
        return self.scan()

    def split(self) -> None:
        """Return None: one short read is never shared."""

    def find(self, first: Positions, last: Positions, *, rows: int, total: int | None) -> Batches:
        if self._held is not None or (total is not None and not self.by_index(rows, total)):
            return self.scan()
        first, last = np.maximum(first, self._first), np.minimum(last, self._last)
        inside = first <= last
        return self._read(first[inside], last[inside], is_whole=False)

    def _read(self, first: Positions, last: Positions, *, is_whole: bool) -> Batches:
        """Yield rows; hold all rows of the tile if they fit in TILE_HELD_BYTES."""
        held: list[Batch] | None = [] if is_whole else None
        size = 0
        for batch in self.batches(self._session.read_ranges(self.shape, first, last)):
            # Where readers block writers, all rows are read before the first is yielded.
            self.pause()
            size += len(batch.block.buffer) + _DERIVED_BYTES * len(batch.block)
            if size > TILE_HELD_BYTES:
                held = None
            if held is not None:
                held.append(batch)
            yield batch
        self._held = held

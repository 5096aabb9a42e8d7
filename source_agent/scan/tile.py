"""One tile of a relation: the rows whose keys lie between two bounds, read by index.

The warehouse opens an exchange for each tile (protocol, section 9). A tile is read once, by one
short range read, and held for the rest of the exchange. So a table that changes all the time is
compared in one snapshot, and where readers block writers the transaction ends before a row is
hashed. At most TILE_HELD_BYTES are held; the rows of a larger tile are read again. If the DBA sets
`rows_by_key`, a tile has at most that many rows, and the database is asked for no more.

The bounds are positions if the key is one integer, else keys in the order of the protocol. The
database reads ranges of keys in its own order. Each row is compared with the bounds again, so a
database that sorts otherwise than it says is refused, and no row is missed (`key_order`).

Source: Carnes and Hanson, sections 3.4 and 3.6. They lock pages of a few ranges; here no lock
outlives the read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import Positions
from driftline.errors import OPEN, ConfigurationError, LimitExceeded, MalformedMessage
from driftline.limits import TILE_HELD_BYTES
from driftline.rows.columns import Block
from driftline.rows.digests import Salt
from driftline.rows.key_order import KeyBuffer, KeyOrder, KeyRange, key_bytes, key_text

from source_agent.engines.interface import Rows, Session
from source_agent.engines.relations.shapes import Shape
from source_agent.printable import counted, printable_row
from source_agent.scan.batches import Batch, Batches
from source_agent.scan.reader import ReadAgain, ReadCounts, Reader

_DERIVED_BYTES = 48  # of a row besides its bytes: offsets, position, mixed fingerprint

Bounds = tuple[int, int]
Tile = TypeVar("Tile", Bounds, KeyRange, tuple[KeyRange, ...])


def tile_of(opening: pb.Open, shape: Shape) -> Bounds | KeyRange | None:
    """Return the first and last position of the tile in an opening, or its range of keys.

    None is the whole relation. Raises MalformedMessage for bounds that do not ascend or are no
    keys, ConfigurationError for a relation that cannot be read so.
    """
    if opening.HasField("between"):
        if opening.HasField("within"):
            raise MalformedMessage("A tile has bounds of one kind.")
        return _keys_of(opening.between, shape)
    return _positions_of(opening.within, shape) if opening.HasField("within") else None


def _positions_of(within: pb.Within, shape: Shape) -> Bounds:
    if within.first > within.last:
        raise MalformedMessage("The bounds of a tile must ascend.")
    if not (shape.recipe.integer_key and shape.indexed):
        raise refused(shape, "is not one integer with an index")
    return within.first, within.last


def _keys_of(between: pb.Between, shape: Shape) -> KeyRange:
    recipe = shape.recipe
    if shape.unordered:
        raise refused(shape, f"has no order that both sides compute: {shape.unordered}")
    bounds = [key_bytes(key, recipe) for key in (between.lower, between.upper) if key]
    if not KeyOrder(recipe).ascends(KeyBuffer.of_bytes(bounds)):
        raise MalformedMessage("The bounds of a tile must ascend.")
    texts = [key_text(bound, recipe) for bound in bounds]
    lower = texts.pop(0) if between.lower else None
    return KeyRange(lower, texts[0] if between.upper else None)


def refused(shape: Shape, why: str) -> ConfigurationError:
    """Return the error of a relation whose key does not allow ranges of keys."""
    key = ", ".join(column.name for column in shape.recipe.key)
    return ConfigurationError(
        f"The relation cannot be read in tiles: its key ({key}) {why}.",
        where=shape.relation.name,
        remedy="Remove `incremental` from the fragment, or ask the DBA for another key or an index "
        "(docs/dba/scans.md#in-tiles).",
        abroad=OPEN,
    )


def reader_of(
    session: Session, shape: Shape, opening: pb.Open, salt: Salt, tally: ReadCounts
) -> Reader:
    """Return the reader of the rows in an opening; read nothing. Raises as `tile_of`."""
    tile, key = tile_of(opening, shape), opening.fragment_key
    if tile is None:
        return Reader(session, shape, fragment_key=key, salt=salt, tally=tally)
    if isinstance(tile, KeyRange):
        return KeyTileReader(session, shape, tile, fragment_key=key, salt=salt, tally=tally)
    return PositionTileReader(session, shape, tile, fragment_key=key, salt=salt, tally=tally)


class TileReader(Reader, ABC, Generic[Tile]):
    """A `Reader` for which only the rows of one tile exist."""

    def __init__(
        self,
        session: Session,
        shape: Shape,
        tile: Tile,
        *,
        fragment_key: bytes,
        salt: Salt,
        tally: ReadCounts,
    ) -> None:
        super().__init__(session, shape, fragment_key=fragment_key, salt=salt, tally=tally)
        self._tile: Tile = tile
        self._held: list[Batch] | None = None
        tally.rows_expected = 0  # the engine's estimate is of the whole relation

    def scan(
        self,
        *,
        ordered: bool = False,  # noqa: ARG002 - a tile is read by index, so always in key order
    ) -> Batches:
        return iter(self._held) if self._held is not None else self._read()

    def scan_hashes(self, again: ReadAgain | None = None) -> Batches:  # noqa: ARG002
        return self.scan()

    def split(self, again: ReadAgain | None = None) -> None:
        """Return None: one short read is never shared."""

    def again(self) -> None:
        """Return None: rows are held, or read by index again."""

    def keys_first(self, *_: object, **__: object) -> None:
        """Return None: rows are held, or read by index again."""

    def find(self, first: Positions, last: Positions, *, rows: int, total: int | None) -> Batches:  # noqa: ARG002
        return self.scan()

    @abstractmethod
    def _rows(self) -> Iterator[Rows]:
        """Return the rows of the tile as the engine reads them."""

    def _released(self, source: Iterator[Rows]) -> Batches:
        for batch in self.batches(source):
            # Where readers block writers, all rows are read before the first is yielded.
            self.pause()
            yield batch

    @property
    def rows_max(self) -> int | None:
        """The most rows that a tile may have, as the DBA says; None is no limit."""
        return self.shape.relation.rows_by_key

    def _read(self) -> Batches:
        """Yield all rows of the tile; hold them if they fit in TILE_HELD_BYTES.

        Raises LimitExceeded above `rows_max` rows.
        """
        held: list[Batch] | None = []
        size, left = 0, self.rows_max
        for batch in self._released(self._rows()):
            if left is not None and (left := left - len(batch.block)) < 0:
                raise self._too_large()
            size += len(batch.block.buffer) + _DERIVED_BYTES * len(batch.block)
            if size > TILE_HELD_BYTES:
                held = None
            if held is not None:
                held.append(batch)
            yield batch
        self._held = held

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(
            f"A tile has more than {counted(self.rows_max or 0, 'row')}, the most of this relation"
            " that the source's DBA allows to be read by key (rows_by_key).",
            where=self.shape.relation.name,
            remedy="Set `rows` of `incremental` to less, or refresh it once by a scan, if the"
            " source has many new rows.",
        )


class PositionTileReader(TileReader[Bounds]):
    """Rows from a first to a last position, both inclusive."""

    def _rows(self) -> Iterator[Rows]:
        first, last = (np.array([bound], np.int64) for bound in self._tile)
        return self._session.read_ranges(self.shape, first, last, rows_max=self.rows_max)

    def find(self, first: Positions, last: Positions, *, rows: int, total: int | None) -> Batches:
        if self._held is not None or (total is not None and not self.by_index(rows, total)):
            return self.scan()
        first, last = np.maximum(first, self._tile[0]), np.minimum(last, self._tile[1])
        inside = first <= last
        return self._released(self._session.read_ranges(self.shape, first[inside], last[inside]))


class KeyTileReader(TileReader[KeyRange]):
    """Rows with keys in a range."""

    @cached_property
    def _order(self) -> KeyOrder:
        return KeyOrder(self.recipe)

    @cached_property
    def _bounds(self) -> KeyBuffer:
        bounds = [key for key in (self._tile.lower, self._tile.upper) if key is not None]
        return KeyBuffer.of_bytes([key_bytes(key, self.recipe) for key in bounds])

    def _rows(self) -> Iterator[Rows]:
        read_between = self._session.capabilities.read_between
        assert read_between is not None, "a relation that is not `unordered` has ranges of keys"
        return read_between(self.shape, self._tile, rows_max=self.rows_max)

    def batches(self, source: Iterator[Rows]) -> Generator[Batch, None, None]:
        """Yield the rows as batches. Raises NullKey, and ConfigurationError for a row that the
        database sorts into the tile though it does not belong there."""
        for batch in super().batches(source):
            self._refuse_nulls(batch.block, self.recipe)
            self._refuse_outside(batch.block)
            yield batch

    def _refuse_outside(self, block: Block) -> None:
        inside = 0 if self._tile.lower is None else 1
        outside = self._order.ranks(KeyBuffer.of_rows(block), self._bounds) != inside
        if outside.any():
            (row,) = block.take(np.flatnonzero(outside)[:1]).rows()
            raise refused(
                self.shape,
                "is sorted by the database otherwise than by its bytes, as the row with key "
                f"{printable_row(row, self.recipe)} shows",
            )

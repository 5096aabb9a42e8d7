"""A part of a relation: rows that the warehouse names by their keys, and all rows in some ranges.

For keys that are not one integer, where a source must not be scanned (protocol, section 7, "Named
keys"). The ranges are read first. Then every named key that did not come with them is looked up by
the unique index, so a key counts as deleted only if the database has no row that is equal to it,
whatever its ranges left out. Nothing else is read, and never more than `rows_max` rows.

A part is held like a tile (`tile.TileReader`), so the rows of groups that differ are rarely read
twice. A row outside of the ranges that comes with one shows another order than the protocol's and
is refused; one with another key than was looked up (the database takes both for equal) is ignored,
as the row of a key that nobody named.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cached_property

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64
from driftline.errors import OPEN, ConfigurationError, LimitExceeded, MalformedMessage
from driftline.limits import PART_RANGES_MAX, REPEATED_BATCHES_MAX
from driftline.reconciliation.named_keys import Ranks, key_recipe
from driftline.rows.columns import Block
from driftline.rows.key_order import KeyBuffer, KeyOrder, KeyRange, key_bytes, key_text
from driftline.rows.keys import positions

from source_agent.engines.interface import Rows
from source_agent.engines.relations.shapes import Shape
from source_agent.printable import printable_row
from source_agent.scan.batches import Batch
from source_agent.scan.reader import KEYS_AT_ONCE, part_too_large
from source_agent.scan.tile import TileReader, refused

Ranges = tuple[KeyRange, ...]


def ranges_of(said: pb.NamedKeys, shape: Shape) -> Ranges:
    """Return the ranges of keys of a part.

    Raises MalformedMessage if they do not ascend, overlap or are too many, ConfigurationError for a
    relation whose keys no unique index finds.
    """
    recipe = shape.recipe
    why = shape.unordered and f"has no order that both sides compute: {shape.unordered}"
    if not why and not shape.vouched:
        why = "has no unique index whose columns are all NOT NULL"
    if why:
        key = ", ".join(column.name for column in recipe.key)
        raise ConfigurationError(
            f"The relation cannot be read in parts: its key ({key}) {why}.",
            where=shape.relation.name,
            remedy='Remove `proof = "part"` and `read_at_most` from the fragment, or ask the DBA'
            " for another key or an index (docs/dba/budgets.md#hours-for-scans).",
            abroad=OPEN,
        )
    if len(said.ranges) > PART_RANGES_MAX:
        raise MalformedMessage("The ranges of a part are too many.")
    last = len(said.ranges) - 1
    bounds: list[bytes] = []
    ranges = []
    for at, between in enumerate(said.ranges):
        if (at and not between.lower) or (at < last and not between.upper):
            raise MalformedMessage("The ranges of a part overlap.")
        ends = [key_bytes(key, recipe) if key else None for key in (between.lower, between.upper)]
        bounds += [end for end in ends if end is not None]
        lower, upper = (None if end is None else key_text(end, recipe) for end in ends)
        ranges.append(KeyRange(lower, upper))
    if not KeyOrder(recipe).ascends(KeyBuffer.of_bytes(bounds)):
        raise MalformedMessage("The bounds of a part must ascend.")
    return tuple(ranges)


class KeyPartReader(TileReader[Ranges]):
    """A `Reader` for which only a part exists; call `name` before anything is read."""

    def name(self, keys: Block, *, rows_max: int) -> tuple[Ranks, U64]:
        """Name the rows of the part; return the map of positions to k, and these k, uint64 [n].

        keys: rows of the key columns alone, in the order in which they are looked up; rows_max: the
        most rows that may be read. Raises MalformedMessage if a key is named twice.
        """
        self._named, self._limit = keys, rows_max
        where = positions(keys, key_recipe(self.recipe), self._seed)
        self._ranks = Ranks.of(where)
        self._ks, _ = self._ranks.embed(where, self.salt)
        self._seen = np.zeros(len(keys), np.bool_)
        self._is_in_range = False
        return self._ranks, self._ks

    @property
    def rows_max(self) -> int:
        """The most rows that the part may have."""
        return self._limit

    @property
    def _repeats_max(self) -> int:
        """Return that of keys that are not unique: two that are looked up may find one row."""
        return REPEATED_BATCHES_MAX

    def batches(self, source: Iterator[Rows]) -> Generator[Batch, None, None]:
        """Yield the rows of the part, each once.

        Raises ConfigurationError for a row that the database sorts into a range though it does not
        belong there.
        """
        for batch in super().batches(source):
            ks, named = self._ranks.embed(batch.positions, self.salt)
            if self._is_in_range:
                self._refuse_outside(batch.block)
            else:
                named[named] = ~self._seen[ks[named]]
            self._seen[ks[named]] = True
            yield batch if self._is_in_range else batch.take(named)

    def _rows(self) -> Iterator[Rows]:
        self._seen[:] = False
        self._is_in_range = True
        able = self._session.capabilities
        assert able.read_between is not None, "a relation that is not `unordered` has ranges"
        for within in self._tile:
            yield from able.read_between(self.shape, within, rows_max=self._limit)
        self._is_in_range = False
        left = np.flatnonzero(~self._seen[self._ks])
        if not len(left):
            return
        if able.read_keys is None:
            raise ConfigurationError(
                "Rows of this database are read by key only if the key is one integer.",
                where=self.shape.relation.name,
                remedy="Use `incremental`, or ask the DBA for hours in which a scan may begin.",
                abroad=OPEN,
            )
        for start in range(0, len(left), KEYS_AT_ONCE):
            some = self._named.take(left[start : start + KEYS_AT_ONCE]).rows()
            keys = [key_text(row[2:], self.recipe) for row in some]  # behind the number of columns
            yield from able.read_keys(self.shape, keys, rows_max=self._limit)

    @cached_property
    def _order(self) -> KeyOrder:
        return KeyOrder(self.recipe)

    @cached_property
    def _bounds(self) -> KeyBuffer:
        """The bounds of all ranges, ascending."""
        ends = [end for within in self._tile for end in (within.lower, within.upper)]
        return KeyBuffer.of_bytes([key_bytes(end, self.recipe) for end in ends if end is not None])

    def _refuse_outside(self, block: Block) -> None:
        """Raise ConfigurationError if a row of the block lies in no range."""
        inside = 0 if self._tile[0].lower is None else 1
        outside = self._order.ranks(KeyBuffer.of_rows(block), self._bounds) % 2 != inside
        if outside.any():
            (row,) = block.take(np.flatnonzero(outside)[:1]).rows()
            raise refused(
                self.shape,
                "is sorted by the database otherwise than by its bytes, as the row with key "
                f"{printable_row(row, self.recipe)} shows",
            )

    def _too_large(self) -> LimitExceeded:
        return part_too_large(self.shape, self._limit)

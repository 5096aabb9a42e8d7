"""Count which columns of updated rows changed, and in which parts of the key's order changes lie.

A refresh has the images of changed rows anyway, while it writes its change feed; nothing is read
again. The two images of a row may be in two tasks. So each task keeps those rows whose mixed
positions are least, at most PAIRS_MAX rows and about PAIRS_BYTES of each side, and says below which
number it kept all. Both sides keep the same rows below the least of these numbers, and the driver
compares them. Up to so many updated rows the counts are exact; else they are those of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Bools, Integers

PARTS: Final = 32  # of the order of an integer key, equally wide between its least and greatest
PAIRS_MAX: Final = 1024
PAIRS_BYTES: Final = 1 << 20
SQUARE_MAX: Final = 1e300  # of a move that is measured
_ALL: Final = 2**63 - 1
SIDES: Final = ("before", "after")
SAMPLED: Final = (
    ("parts", pa.list_(pa.int64())),
    ("limit", pa.int64()),
    ("before", pa.binary()),
    ("after", pa.binary()),
)  # fields of a task's row; images are a stream of Arrow, with `_MIXED` behind the columns
_MIXED: Final = "_driftline_mixed"


@dataclass(frozen=True, slots=True)
class ColumnMoves:
    """The moves of a numeric column in updated rows: `rows` of them have a number on both sides,
    and `square` is the mean of (new − old)² over these."""

    column: str
    rows: int
    square: float


@dataclass(frozen=True, slots=True)
class ChangedPlaces:
    """Columns and parts of the key's order in which a version differs from the one before.

    Attributes:
        compared: updated rows that were compared column by column.
        columns: of these the rows that changed in a column, by its published name; no zeros.
        parts: changed rows in each of PARTS parts of the key's order; None: the key is no integer.
        moves: of a numeric column that was asked for in the compared rows; None: none was.
    """

    compared: int
    columns: Mapping[str, int]
    parts: tuple[int, ...] | None
    moves: ColumnMoves | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as the report has it."""
        parts = None if self.parts is None else list(self.parts)
        said = {"compared": self.compared, "columns": dict(self.columns), "parts": parts}
        return said if self.moves is None else said | {"moves": asdict(self.moves)}


@dataclass
class _Images:
    """The images of one side that a task keeps: those below `limit`."""

    limit: int = _ALL
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch, mixed: Integers) -> None:
        is_low = mixed < self.limit
        if not is_low.any():
            return
        rows = batch.append_column(_MIXED, pa.array(mixed)).filter(pa.array(is_low))
        self._held.append(rows)
        self._rows += len(rows)
        self._bytes += rows.nbytes
        if self._rows > 2 * PAIRS_MAX or self._bytes > 2 * PAIRS_BYTES:
            self._cut()

    def _cut(self) -> None:
        table = pa.Table.from_batches(self._held)
        mixed = np.sort(table[_MIXED].to_numpy())
        most = min(PAIRS_MAX, len(table) * PAIRS_BYTES // max(table.nbytes, 1))
        if most < len(table):
            self.limit = int(mixed[most])
            table = table.filter(pc.less(table[_MIXED], self.limit))
        self._held, self._rows = table.combine_chunks().to_batches(), len(table)
        self._bytes = table.nbytes

    def finish(self) -> bytes | None:
        if not self._held:
            return None
        self._cut()
        if not self._held:  # one row is larger than all that is kept
            return None
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._held[0].schema) as stream:
            for batch in self._held:
                stream.write_batch(batch)
        return bytes(out.getvalue().to_pybytes())


class ChangeSampler:
    """The changes that one task sees. `bounds`: of the integer key of all rows; None: others."""

    def __init__(self, bounds: tuple[int, int] | None) -> None:
        """Begin with no row."""
        self._bounds = bounds
        self._parts = np.zeros(PARTS, np.int64)
        self._sides = {side: _Images() for side in SIDES}

    def pair(self, side: str, batch: pa.RecordBatch, positions: Integers, chosen: Bools) -> None:
        """Add the chosen rows of a batch, bool [rows]: images of updated rows of one side."""
        rows = batch.filter(pa.array(chosen))
        self._sides[side].add(rows, _mixed(positions[chosen]))

    def count(self, positions: Integers) -> None:
        """Count changed rows by their positions, int64 [rows]."""
        if self._bounds is None:
            return
        least, greatest = self._bounds
        share = (positions.astype(np.float64) - least) / (float(greatest) - float(least) + 1.0)
        at = np.clip((share * PARTS).astype(np.int64), 0, PARTS - 1)
        self._parts += np.bincount(at, minlength=PARTS)

    def finish(self) -> dict[str, object]:
        """Return the values of a row, by SAMPLED."""
        images = {side: one.finish() for side, one in self._sides.items()}
        limit = min(one.limit for one in self._sides.values())
        parts = None if self._bounds is None else self._parts.tolist()
        return {"parts": parts, "limit": limit, **images}


def merged(rows: Iterable[Mapping[str, Any]], measured: str | None = None) -> ChangedPlaces:
    """Return what tasks found, from the values that each of them returned.

    measured: a numeric column of the images whose moves are wanted; None: none.
    """
    parts, limit = np.zeros(PARTS, np.int64), _ALL
    has_parts = False
    images: dict[str, list[pa.Table]] = {side: [] for side in SIDES}
    for row in rows:
        limit = min(limit, row["limit"])
        if row["parts"] is not None:
            parts, has_parts = parts + np.array(row["parts"], np.int64), True
        for side in SIDES:
            if row[side] is not None:
                images[side].append(pa.ipc.open_stream(row[side]).read_all())
    counted = tuple(parts.tolist()) if has_parts else None
    if not all(images.values()):
        return ChangedPlaces(0, {}, counted)
    before, after = (pa.concat_tables(images[side]) for side in SIDES)
    low = (table.filter(pc.less(table[_MIXED], limit)) if limit < _ALL else table
           for table in (before, after))  # fmt: skip
    before, after = _paired(*low)
    moves = None if measured is None else _moves(measured, before[measured], after[measured])
    return ChangedPlaces(len(before), _differing(before, after), counted, moves)


def _paired(before: pa.Table, after: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that both tables have, in one order."""
    mixed = (table[_MIXED].to_numpy() for table in (before, after))
    _, left, right = np.intersect1d(*mixed, return_indices=True)
    return before.take(pa.array(left)), after.take(pa.array(right))


def _differing(before: pa.Table, after: pa.Table) -> dict[str, int]:
    """Return in how many rows of two tables each column differs."""
    columns = {}
    for name in before.column_names:
        if name != _MIXED:
            some = before[name], after[name]
            if number := _number_differing(*(one.combine_chunks() for one in some)):
                columns[name] = number
    return columns


def _moves(name: str, before: pa.ChunkedArray, after: pa.ChunkedArray) -> ColumnMoves:
    """Return the moves of a column. A move too large for a float is not measured."""
    old, new = (one.cast(pa.float64(), safe=False).to_numpy() for one in (before, after))
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (new - old) ** 2
    known = squares[squares <= SQUARE_MAX]  # no NULL and no NaN, which are no less
    return ColumnMoves(name, len(known), float(known.mean()) if len(known) else 0.0)


def _number_differing(before: pa.Array, after: pa.Array) -> int:
    """Return in how many rows two columns differ, float values by their bits."""
    if pa.types.is_floating(before.type):
        bits = pa.int32() if before.type == pa.float32() else pa.int64()
        before, after = before.view(bits), after.view(bits)
    is_other = pc.fill_null(pc.not_equal(before, after), False)
    is_nulled = pc.xor(pc.is_null(before), pc.is_null(after))
    return int(pc.sum(pc.or_(is_other, is_nulled)).as_py() or 0)


def _mixed(positions: Integers) -> Integers:
    """Return numbers from 0 on in an order that has nothing to do with that of the positions."""
    mixed = np.ascontiguousarray(positions, np.int64).view(np.uint64).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    halved: npt.NDArray[np.int64] = (mixed >> np.uint64(1)).view(np.int64)
    return halved

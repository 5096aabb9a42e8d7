"""A part of our rows that the keys themselves name, in key order.

These are keys that are not one integer, integers that span too much for k, and rows that are
compared in shards.

As in a part by positions (`groups`), the rows most likely to have changed are compared, the next
rows in key order after the last part, and whatever is new behind the greatest key. The bounds of
these ranges are keys of ours; the source reads them, and looks up all other named keys, by its
index (protocol, section 7, "Named keys"). A new key between two old ones comes when its range has
its turn.

A group has neighbours in key order where that is cheap to sort: such keys compress better.
Rejected: bounds from a sample. A part must not exceed its number of rows, and the exact bounds cost
no more than one reading of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import Floats, Integers
from driftline.errors import LimitExceeded, MalformedMessage
from driftline.limits import GROUP_KEYS_PER_MESSAGE, NAMED_BODY_BYTES_SENT, NAMED_BYTES_MAX
from driftline.reconciliation import named_keys
from driftline.reconciliation.named_keys import Ranks
from driftline.reconciliation.ranges import short_digests
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix
from driftline.rows.key_order import KeyBuffer, KeyOrder, KeyRange, key_bytes, key_text
from driftline.values.types import Recipe

from warehouse_agent.columns.layout import KEY
from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.groups import assignment
from warehouse_agent.methods.groups.assignment import PartRows
from warehouse_agent.methods.groups.exchange import (
    GroupedRows,
    GroupSide,
    KeyPartLimits,
    NamedPiece,
)
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.planning.group_selection import GroupPlan, class_of
from warehouse_agent.planning.group_shards import LENGTH_BYTES
from warehouse_agent.planning.update_probability import ChangeOutlook
from warehouse_agent.report import counted
from warehouse_agent.tasks.digests import RowsInKeyTiles, keys_of, numbers, tasks_for, with_keys
from warehouse_agent.tasks.scan import FilePiece, Function, scan
from warehouse_agent.tasks.steps import work_of_digests

KEYS_IN_TURN_MAX = 1 << 16  # sorted by a task, each with as many bytes as the longest
_SORTED_BYTES_MAX = 64 << 20  # of sort keys; more keys stay in the order of the files
_PREFIX_BYTES = 8  # of a key in a frame, at most, besides its bytes

_LOWEST = pa.schema([("keys", pa.list_(pa.binary())), ("greatest", pa.binary())])
_ASSIGNED = pa.schema(
    [
        ("size", pa.int32()),
        *((name, pa.binary()) for name in ("keys", "positions", "digests", "compared", "rest")),
        ("key_bytes", pa.int64()),
        ("updates_left", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """The ranges of keys that a part reads, `inside` which rows of ours lie in them, and the key
    with which the next turn begins, None: the least."""

    ranges: tuple[KeyRange, ...]
    inside: RowsInKeyTiles
    following: bytes | None


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Named rows in groups, and digests as in `assignment.AssignedRows`. `key_bytes` is the
    size of all keys before compression."""

    pieces: tuple[NamedPiece, ...]
    compared: Digest
    rest: Digest
    updates_left: float
    key_bytes: int


def reduce(
    copy: WorkingCopy,
    plan: GroupPlan,
    part: PartRows,
    window: KeyWindow,
    costs: tuple[int, int],
    *,
    rows_max: int,
) -> GroupSide:
    """Put the rows of a part into groups named by their keys; one step.

    Args:
        costs: bytes of a row and of a round trip.
        rows_max: the most rows that the source may read.

    Raises:
        LimitExceeded: the keys have more bytes than a source holds.
        MalformedMessage: two keys have one position.
    """
    assigned = _assign(copy, plan, part)
    key_bytes = assigned.key_bytes + LENGTH_BYTES * assigned.compared.count
    if key_bytes > NAMED_BYTES_MAX:
        raise LimitExceeded(
            f"The keys of {counted(assigned.compared.count, 'row')} have {key_bytes:,} bytes,"
            f" and a source takes {NAMED_BYTES_MAX:,}.",
            where=copy.name,
            remedy="Set `read_at_most` of the fragment to fewer rows.",
        )
    ranks = Ranks.of(np.concatenate([piece.positions for piece in assigned.pieces]))
    size = sum(len(piece.keys) for piece in assigned.pieces)
    recipe = copy.layout.recipe
    following = () if window.following is None else key_text(window.following, recipe)
    none, compared = np.zeros(0, np.uint64), assigned.compared
    grouped = GroupedRows(
        ranks, assigned.pieces, none, *costs, KeyPartLimits(window.ranges, rows_max)
    )
    turn = NextPartNote(
        key=tuple(following),
        key_bytes=size / max(compared.count, 1),
        groups=grouped.measured(compared.count),
    )
    return GroupSide(grouped, compared, copy, assigned.rest, turn, assigned.updates_left)


def window_of(copy: WorkingCopy, rows: int) -> KeyWindow:
    """Return the next `rows` rows in turn, and all behind the greatest key; one step, or two."""
    recipe = copy.layout.recipe
    start = _begin(copy.turn, recipe)
    lowest, greatest = _lowest(copy, start, rows + 1)
    if not lowest and start is not None:
        start = None
        lowest, greatest = _lowest(copy, start, rows + 1)
    upper = lowest[rows] if len(lowest) > rows else None
    ends: list[tuple[bytes | None, bytes | None]] = [(start, None)]
    if upper is not None and upper != greatest:
        ends = [(start, upper), (greatest, None)]
    ranges = tuple(
        KeyRange(*(None if k is None else key_text(k, recipe) for k in pair)) for pair in ends
    )
    bounds = [key for pair in ends for key in pair if key is not None]
    # Between the bounds, in their order, the rows of a range and of none alternate.
    inside = tuple((i + (start is None)) % 2 == 1 for i in range(len(bounds) + 1))
    following = None if len(ends) == 1 else upper
    return KeyWindow(ranges, RowsInKeyTiles(recipe, tuple(bounds), inside), following)


def _begin(turn: NextPartNote, recipe: Recipe) -> bytes | None:
    """Return the key with which this turn begins; None: the least, or no key of this recipe."""
    try:
        return key_bytes(turn.key, recipe) if turn.key else None
    except MalformedMessage:
        return None


def _lowest(copy: WorkingCopy, start: bytes | None, count: int) -> tuple[list[bytes], bytes | None]:
    """Return the `count` lowest keys from `start` on, ascending, and the greatest of all."""
    order = KeyOrder(copy.layout.recipe)
    rows = scan(
        copy.steps,
        copy.files,
        copy.layout.key_schema,
        with_keys(copy.layout.recipe, _lowest_of(copy.layout.recipe, start, count)),
        _LOWEST,
        work=work_of_digests(copy.files),
        tasks_max=tasks_for(32 * count),
    ).to_pylist()
    ends = _sorted(order, [row["greatest"] for row in rows if row["greatest"] is not None])
    lowest = _sorted(order, [key for row in rows for key in row["keys"]])[:count]
    return lowest, ends[-1] if ends else None


def _sorted(order: KeyOrder, keys: list[bytes]) -> list[bytes]:
    return [keys[at] for at in order.sorted(KeyBuffer.of_bytes(keys)).tolist()] if keys else []


def _lowest_of(recipe: Recipe, start: bytes | None, count: int) -> Function:
    bounds = KeyBuffer.of_bytes([] if start is None else [start])

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        order, held, ends = KeyOrder(recipe), pa.array([], pa.binary()), list[bytes]()
        for piece in pieces:
            if not len(piece.batch):
                continue
            column, keys = piece.batch.column(KEY), keys_of(piece.batch)
            at = order.sorted(keys)
            ends = _sorted(order, [*ends, column[int(at[-1])].as_py()])[-1:]
            behind = at[order.ranks(keys, bounds)[at] == len(bounds)][:count]
            held = pa.concat_arrays([held, column.take(pa.array(behind))])
            if len(held) > count:
                some = pa.RecordBatch.from_arrays([held], [KEY])
                held = held.take(pa.array(order.sorted(keys_of(some))[:count]))
        greatest = ends[0] if ends else None
        yield pa.RecordBatch.from_pylist(
            [{"keys": held.to_pylist(), "greatest": greatest}], schema=_LOWEST
        )

    return run


def _assign(copy: WorkingCopy, plan: GroupPlan, part: PartRows) -> NamedRows:
    rows = scan(
        copy.steps,
        copy.files,
        assignment.with_omega(copy.layout.keyed_schema, copy.layout),
        with_keys(
            copy.layout.recipe, _assigned(plan, copy.layout.recipe, copy.salt, part, copy.outlook)
        ),
        _ASSIGNED,
        work=work_of_digests(copy.files),
        tasks_max=assignment.tasks_of(copy.files),
    ).to_pylist()
    pieces: list[NamedPiece] = []
    compared, rest, left, size = Digest(), Digest(), 0.0, 0
    for row in rows:
        if row["size"]:
            where = np.frombuffer(row["positions"], np.int64)
            pieces.append(NamedPiece(row["size"], where, row["digests"], row["keys"]))
        else:
            compared += assignment.digest_of(row["compared"])
            rest += assignment.digest_of(row["rest"])
            left += row["updates_left"]
            size += row["key_bytes"]
    return NamedRows(tuple(pieces), compared, rest, left, size)


def _assigned(
    plan: GroupPlan, recipe: Recipe, salt: Salt, part: PartRows, outlook: ChangeOutlook | None
) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        where, hashes, likely = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)], [np.zeros(0)]
        keys = [pa.array([], pa.binary())]
        compared, rest, left = Digest(), Digest(), 0.0
        for batch in (piece.batch for piece in pieces):
            at, hi, lo = (numbers(batch, i) for i in range(3))
            p = assignment.probabilities(batch, outlook)
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            chosen = assignment.chosen_rows(part, batch, p, salt)
            inside, outside = (
                MixedFingerprints(mixed.m0[some], mixed.m1[some]) for some in (chosen, ~chosen)
            )
            compared += inside.digest()
            rest += outside.digest()
            where.append(at[chosen])
            hashes.append(inside.m0)
            likely.append(p[chosen])
            keys.append(batch.column(KEY).filter(pa.array(chosen)))
            left += float(p[~chosen].sum())
        named = pa.concat_arrays(keys)
        rows = _NamedRows(
            named, np.concatenate(where), np.concatenate(hashes), np.concatenate(likely)
        )
        yield from _groups(rows, plan, recipe, salt)
        size = pc.sum(pc.binary_length(named), min_count=0).as_py()
        digests = {
            "compared": assignment.digest_bytes(compared),
            "rest": assignment.digest_bytes(rest),
        }
        yield _row(key_bytes=size, updates_left=left, **digests)

    return run


@dataclass(frozen=True, slots=True)
class _NamedRows:
    """Keys, positions, row hashes and P({±t}) of rows, [n] each."""

    keys: pa.BinaryArray
    where: Integers
    hashes: np.ndarray
    likely: Floats


def _groups(
    rows: _NamedRows, plan: GroupPlan, recipe: Recipe, salt: Salt
) -> Iterator[pa.RecordBatch]:
    """Yield the groups of rows in pieces that fit a message."""
    if not len(rows.keys):
        return
    batch = pa.RecordBatch.from_arrays([rows.keys], [KEY])
    longest = int(pc.max(pc.binary_length(rows.keys)).as_py())
    order = np.arange(len(rows.where))
    if longest * len(order) <= _SORTED_BYTES_MAX:
        order = KeyOrder(recipe).sorted(keys_of(batch))
    most = min(NAMED_BODY_BYTES_SENT // (longest + _PREFIX_BYTES), GROUP_KEYS_PER_MESSAGE)
    classes = class_of(rows.likely)[order]
    for number in np.unique(classes):
        at, size = order[classes == number], min(int(plan.rows[number]), most)
        step = most // size * size
        for some in (at[start : start + step] for start in range(0, len(at), step)):
            group = np.arange(len(some)) // size
            sums = np.zeros(int(group[-1]) + 1, np.uint64)
            np.add.at(sums, group, rows.hashes[some])
            digests = short_digests(sums, np.bincount(group).astype(np.int64))
            keys = rows.keys.take(pa.array(some)).to_pylist()
            yield _row(
                size=size,
                keys=named_keys.pack(keys, recipe, salt),
                positions=rows.where[some].tobytes(),
                digests=digests.astype("<u8").tobytes(),
            )


def _row(**values: object) -> pa.RecordBatch:
    row = {"size": 0, "updates_left": 0.0, "key_bytes": 0}
    row |= dict.fromkeys(_ASSIGNED.names[1:-2], b"")
    return pa.RecordBatch.from_pylist([row | values], schema=_ASSIGNED)

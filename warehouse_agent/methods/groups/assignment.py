"""Assign rows to groups, by a plan of groups, without a global order.

Each task divides the rows of its files into classes of similar P({±t}). In each class a fixed
number of keys, in key order, makes a group, so the keys of a group are near each other: key lists
become short, and sources read by index. A task returns the groups as they are sent (a third of a
byte per key and 8 bytes per group), so the driver never holds the rows. It leaves at most one
incomplete group per class, which costs about Φ_h; so there are few tasks.

Rows whose keys are hashed to the same k must be in one group, so one task has them all: at most
GROUPED_KEYS_MAX. Rejected: `row_number` over classes, for which Spark always shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
from driftline.arrays import U64, Bools, Floats, Integers
from driftline.reconciliation.groups import GroupSums, SizedGroups
from driftline.reconciliation.sketches import Embedding
from driftline.rows.digests import Digest, MixedFingerprints, Salt, mix, xx_array

from warehouse_agent.columns.layout import CHANGED, FIRST, RATE, Layout
from warehouse_agent.methods.groups.exchange import GroupPiece
from warehouse_agent.planning.choice import CHANGE_SHARE
from warehouse_agent.planning.group_selection import (
    GroupPlan,
    Histogram,
    PartSelection,
    class_of,
)
from warehouse_agent.planning.update_probability import ChangeOutlook, probability
from warehouse_agent.tasks.digests import Files, Inside, numbers, tasks_for
from warehouse_agent.tasks.scan import FilePiece, Function, scan
from warehouse_agent.tasks.steps import Steps, work_of_digests

_OMEGA = (FIRST, CHANGED, RATE)
_COUNTED = pa.schema([("counts", pa.binary()), ("updates", pa.binary())])
_POSITIONS = pa.schema([("positions", pa.binary())])
# What a task returns: groups, or in its last row the rows that are in none, and digests.
_ASSIGNED = pa.schema(
    [
        ("size", pa.int32()),
        *((name, pa.binary()) for name in ("ks", "digests", "ungrouped", "compared", "rest")),
        ("updates_left", pa.float64()),
    ]
)
ROWS_PER_TASK = 500_000  # 24 MB, sorted in a task


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows that a part compares: the likeliest, and those `inside` the ranges that it reads.

    `within`: of these, only the rows of a shard; None: all.
    """

    likeliest: PartSelection
    inside: Inside
    within: Inside | None = None


@dataclass(frozen=True, slots=True)
class RowsInPositions:
    """Rows in a window of positions, both ends inclusive."""

    first: int
    last: int

    def __call__(self, batch: pa.RecordBatch) -> Bools:
        """Return which rows of a batch lie in it, bool [rows]."""
        where = numbers(batch, 0)
        is_inside: Bools = (where >= self.first) & (where <= self.last)
        return is_inside


@dataclass(frozen=True, slots=True)
class AssignedRows:
    """Rows in groups; `ungrouped` are the k of rows that are compared but in no group, uint64 [n]
    ascending. `compared` is the digest of the compared rows, `rest` that of all others, and
    `updates_left` is the sum of P({±t}) of these."""

    pieces: tuple[GroupPiece, ...]
    ungrouped: U64
    compared: Digest
    rest: Digest
    updates_left: float


@dataclass(frozen=True, slots=True)
class AssignmentRule:
    """A rule by which rows are put into groups.

    part: compare only these rows; the plan puts each of them into a group. None: all rows.
    """

    plan: GroupPlan
    embedding: Embedding
    salt: Salt
    part: PartRows | None = None


def histogram(
    steps: Steps, files: Files, layout: Layout, outlook: ChangeOutlook | None
) -> Histogram:
    """Count the rows of files by their probability of an update; one step.

    Args:
        outlook: on the updates of these rows; None: all are equally likely.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    function = _histogram(outlook)
    columns = pa.schema([layout.file_schema.field(name) for name in _OMEGA])
    rows = scan(steps, files, columns, function, _COUNTED, work=work_of_digests(files)).to_pylist()
    parts = (
        Histogram(np.frombuffer(r["counts"], np.int64), np.frombuffer(r["updates"], np.float64))
        for r in rows
    )
    return reduce(add, parts, Histogram.of(np.empty(0)))


def window_end(steps: Steps, files: Files, layout: Layout, start: int, count: int) -> int | None:
    """Return the `count`-th position from `start` on, inclusive; one step.

    None if there are fewer positions.
    """
    function = _least(start, count)
    columns, tasks = layout.lane_schema, tasks_for(8 * max(count, 1))
    rows = scan(
        steps,
        files,
        columns,
        function,
        _POSITIONS,
        work=work_of_digests(files),
        tasks_max=tasks,
    )
    lowest = (row.as_buffer() for row in rows["positions"])
    parts = [np.zeros(0, np.int64), *(np.frombuffer(some, np.int64) for some in lowest)]
    least = _lowest(np.concatenate(parts), count)
    return int(least.max()) if 0 < count == len(least) else None


def assign(
    steps: Steps,
    files: Files,
    layout: Layout,
    outlook: ChangeOutlook | None,
    rule: AssignmentRule,
) -> AssignedRows:
    """Assign the rows of files to the groups of a plan; one step.

    Args:
        outlook: on the updates of these rows; None: all are equally likely.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    tasks = 1 if rule.embedding.base is None else tasks_of(files)
    function = _assign(rule, outlook)
    columns = with_omega(layout.lane_schema, layout)
    rows = scan(
        steps,
        files,
        columns,
        function,
        _ASSIGNED,
        work=work_of_digests(files),
        tasks_max=tasks,
    )
    pieces: list[GroupPiece] = []
    ungrouped = [np.zeros(0, np.uint64)]
    compared, rest, left = Digest(), Digest(), 0.0
    for row in rows.to_pylist():
        if row["size"]:
            pieces.append(GroupPiece(row["size"], row["ks"], row["digests"]))
        else:
            ungrouped.append(np.frombuffer(row["ungrouped"], np.uint64))
            compared += digest_of(row["compared"])
            rest += digest_of(row["rest"])
            left += row["updates_left"]
    return AssignedRows(tuple(pieces), np.sort(np.concatenate(ungrouped)), compared, rest, left)


def _histogram(outlook: ChangeOutlook | None) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        total = Histogram.of(np.empty(0))
        for piece in pieces:
            total += Histogram.of(probabilities(piece.batch, outlook))
        yield pa.RecordBatch.from_pydict(
            {"counts": [total.counts.tobytes()], "updates": [total.updates.tobytes()]},
            schema=_COUNTED,
        )

    return run


def _least(start: int, count: int) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        lowest = np.zeros(0, np.int64)
        for piece in pieces:
            where = numbers(piece.batch, 0)
            lowest = _lowest(np.concatenate([lowest, where[where >= start]]), count)
        yield pa.RecordBatch.from_pydict({"positions": [lowest.tobytes()]}, schema=_POSITIONS)

    return run


def _lowest(positions: Integers, count: int) -> Integers:
    """Return the `count` lowest of positions, int64 [n], in any order; all if there are fewer."""
    return np.partition(positions, count)[:count] if len(positions) > count else positions


def _assign(rule: AssignmentRule, outlook: ChangeOutlook | None) -> Function:
    embedding, salt, part = rule.embedding, rule.salt, rule.part

    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        ks, hashes, likely = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], [np.zeros(0)]
        compared, rest, left = Digest(), Digest(), 0.0
        for batch in (piece.batch for piece in pieces):
            where, hi, lo = (numbers(batch, i) for i in range(3))
            p = probabilities(batch, outlook)
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            chosen = chosen_rows(part, batch, p, salt)
            inside, outside = (
                MixedFingerprints(mixed.m0[at], mixed.m1[at]) for at in (chosen, ~chosen)
            )
            compared += inside.digest()
            rest += outside.digest()
            ks.append(embedding.embed(where[chosen], salt)[0])
            hashes.append(inside.m0)
            likely.append(p[chosen])
            left += float(p[~chosen].sum())
        sized, ungrouped = _sized(rule.plan, np.concatenate(ks), np.concatenate(likely))
        sums = GroupSums(sized)
        sums.add(np.concatenate(ks), np.concatenate(hashes))
        digests, at = sums.short_digests(), 0
        for one in sized:
            for ks_bytes, short in one.pieces(digests[at : at + one.count]):
                yield _row(size=one.size, ks=ks_bytes, digests=short)
            at += one.count
        digests_of = {"compared": digest_bytes(compared), "rest": digest_bytes(rest)}
        yield _row(ungrouped=ungrouped.tobytes(), updates_left=left, **digests_of)

    return run


def _sized(plan: GroupPlan, ks: U64, p: Floats) -> tuple[list[SizedGroups], U64]:
    """Return the groups of these rows by size, and the k, uint64 [n] ascending, in none."""
    order = np.argsort(ks, kind="stable")
    distinct, first = np.unique(ks[order], return_index=True)
    likeliest = np.maximum.reduceat(p[order], first) if len(first) else p
    classes = class_of(likeliest)
    sized = [
        SizedGroups(int(plan.rows[at]), distinct[classes == at])
        for at in np.unique(classes)
        if plan.rows[at]
    ]
    return sized, distinct[plan.rows[classes] == 0]


def chosen_rows(part: PartRows | None, batch: pa.RecordBatch, p: Floats, salt: Salt) -> Bools:
    """Return the rows of a batch that are compared, bool [rows]; `p`: P({±t}), float64 [rows]."""
    if part is None:
        return np.ones(len(batch), np.bool_)
    classes, where, likeliest = class_of(p), numbers(batch, 0), part.likeliest
    drawn = xx_array(where.view(np.uint64), np.uint64(salt.s0)) < likeliest.share * 2.0**64
    is_chosen = part.inside(batch)
    is_chosen |= classes >= likeliest.least
    is_chosen |= (classes == likeliest.least - 1) & drawn
    return is_chosen if part.within is None else is_chosen & part.within(batch)


def _row(**values: object) -> pa.RecordBatch:
    row = {"size": 0, "updates_left": 0.0} | dict.fromkeys(_ASSIGNED.names[1:-1], b"") | values
    return pa.RecordBatch.from_pylist([row], schema=_ASSIGNED)


def digest_bytes(digest: Digest) -> bytes:
    """Return a digest as the bytes in which a task returns it."""
    return digest.count.to_bytes(8, "little") + digest.sum_bytes()


def digest_of(data: bytes) -> Digest:
    """Return the digest in these bytes of a task."""
    return Digest(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:24], "little"))


def with_omega(columns: pa.Schema, layout: Layout) -> pa.Schema:
    """Return columns of files with those of the statistics of rows behind them."""
    return pa.schema([*columns, *(layout.file_schema.field(name) for name in _OMEGA)])


def tasks_of(files: Files) -> int:
    """Return the number of tasks among which the rows of files are divided."""
    return sum(f.rows for f in files) // ROWS_PER_TASK + 1


def probabilities(batch: pa.RecordBatch, outlook: ChangeOutlook | None) -> Floats:
    """Return P({±t}) of the rows of a batch, float64 [rows]."""
    if outlook is None:
        return np.full(len(batch), CHANGE_SHARE)
    omega = (batch.column(name).cast(pa.float64()) for name in _OMEGA)
    return probability(outlook, *(column.to_numpy(zero_copy_only=False) for column in omega))

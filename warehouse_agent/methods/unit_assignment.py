"""Assign rows to units in Spark, by a plan of groups, without a global order.

Each task divides the rows of its Spark partition into classes of similar P({±t}). In each class a
fixed number of keys, in key order, makes a unit, so the keys of a unit are near each other: key
lists become short, and sources read by index. A task returns the units as they are sent (a third of
a byte per key and 8 bytes per unit), so the driver never holds the rows. It leaves at most one
incomplete unit per class, which costs about Φ_h; so there are few tasks.

Rows whose keys are hashed to the same k must be in one unit, so they are first shuffled by k.
Rejected: `row_number` over classes, for which Spark always shuffles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.arrays import U64, Bools, Floats
from driftline.digests import Digest, Mixed, Salt, mix, xx_array
from driftline.sketches import Embedding
from driftline.units import UnitRun, UnitSums

from warehouse_agent.columns.layout import HI, LO, Layout
from warehouse_agent.methods.groups import UnitPiece
from warehouse_agent.planning.group_selection import GroupPlan, Histogram, Selection, class_of
from warehouse_agent.spark.executors import Batches, Task, driver_errors, task
from warehouse_agent.tasks.digests import k_column, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_P, _K = "_driftline_p", "_driftline_k"
# What a task returns: units, or in its last row the rows that are in none, and digests.
_COLUMNS = (
    ("size", "int"),
    *((name, "binary") for name in ("ks", "digests", "ungrouped", "compared", "rest")),
)
ROWS_PER_TASK = 500_000  # 24 MB, sorted in an executor


@dataclass(frozen=True, slots=True)
class PartRows:
    """The rows that a part compares: the likeliest, and all in a window of positions, both ends
    inclusive."""

    likeliest: Selection
    window: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AssignedRows:
    """Rows in units; `ungrouped` are the k of rows that are compared but in no unit, uint64 [n]
    ascending. `compared` is the digest of the compared rows, `rest` that of all others."""

    pieces: tuple[UnitPiece, ...]
    ungrouped: U64
    compared: Digest
    rest: Digest


def histogram(rows: DataFrame, probability_sql: str) -> Histogram:
    """Count rows by their probability of an update; one Spark job.

    Args:
        probability_sql: Spark SQL for P({±t}) of a row, in [0, 1] and never null.
    """
    partial = rows.selectExpr(f"cast({probability_sql} as double) as {_P}").mapInArrow(
        task(_histogram), "counts binary, updates binary"
    )
    with driver_errors():
        found = partial.collect()
    parts = (
        Histogram(np.frombuffer(r.counts, np.int64), np.frombuffer(r.updates, np.float64))
        for r in found
    )
    return reduce(add, parts, Histogram.of(np.empty(0)))


def assign(
    rows: DataFrame,
    layout: Layout,
    probability_sql: str,
    plan: GroupPlan,
    embedding: Embedding,
    salt: Salt,
    *,
    count: int,
    part: PartRows | None = None,
) -> AssignedRows:
    """Assign rows, about `count`, to the units of a plan; one Spark job.

    Args:
        probability_sql: Spark SQL for P({±t}) of a row, in [0, 1] and never null.
        part: compare only these rows; the plan puts each of them into a unit.
    """
    narrow = rows.selectExpr(
        f"{layout.position_sql} as position",
        f"{HI} as hi",
        f"{LO} as lo",
        f"cast({probability_sql} as double) as {_P}",
    )
    tasks = count // ROWS_PER_TASK + 1
    if embedding.base is None:
        k = k_column("position", embedding, salt)
        narrow = narrow.withColumn(_K, k).repartition(tasks, _K).drop(_K)
    else:
        narrow = narrow.coalesce(tasks)
    found = narrow.mapInArrow(
        task(_assign(plan, embedding, salt, part)), ", ".join(map(" ".join, _COLUMNS))
    )
    pieces: list[UnitPiece] = []
    ungrouped = [np.zeros(0, np.uint64)]
    compared, rest = Digest(), Digest()
    with driver_errors():
        for row in found.collect():
            if row.size:
                pieces.append(UnitPiece(row.size, bytes(row.ks), bytes(row.digests)))
            else:
                ungrouped.append(np.frombuffer(row.ungrouped, np.uint64))
                compared += _digest(row.compared)
                rest += _digest(row.rest)
    return AssignedRows(tuple(pieces), np.sort(np.concatenate(ungrouped)), compared, rest)


def _histogram(batches: Batches) -> Iterator[pa.RecordBatch]:
    found = Histogram.of(np.empty(0))
    for batch in batches:
        found += Histogram.of(_probabilities(batch.column(0)))
    yield pa.RecordBatch.from_pydict(
        {"counts": [found.counts.tobytes()], "updates": [found.updates.tobytes()]}
    )


def _assign(plan: GroupPlan, embedding: Embedding, salt: Salt, part: PartRows | None) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        ks, hashes, likely = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], [np.zeros(0)]
        compared, rest = Digest(), Digest()
        for batch in batches:
            where, hi, lo = (numbers(batch, i) for i in range(3))
            p = _probabilities(batch.column(3))
            mixed = mix(salt, hi.view(np.uint64), lo.view(np.uint64))
            chosen = _chosen(part, where, p, salt)
            inside, outside = (Mixed(mixed.m0[at], mixed.m1[at]) for at in (chosen, ~chosen))
            compared += inside.digest()
            rest += outside.digest()
            ks.append(embedding.embed(where[chosen], salt)[0])
            hashes.append(inside.m0)
            likely.append(p[chosen])
        runs, ungrouped = _runs(plan, np.concatenate(ks), np.concatenate(likely))
        sums = UnitSums(runs)
        sums.add(np.concatenate(ks), np.concatenate(hashes))
        digests, at = sums.short_digests(), 0
        for one in runs:
            for ks_bytes, digest_bytes in one.pieces(digests[at : at + one.units]):
                yield _row(size=one.size, ks=ks_bytes, digests=digest_bytes)
            at += one.units
        yield _row(ungrouped=ungrouped.tobytes(), compared=_bytes(compared), rest=_bytes(rest))

    return run


def _runs(plan: GroupPlan, ks: U64, p: Floats) -> tuple[list[UnitRun], U64]:
    """Return the runs of these rows, and the k that are in none, uint64 [n] ascending."""
    order = np.argsort(ks, kind="stable")
    distinct, first = np.unique(ks[order], return_index=True)
    likeliest = np.maximum.reduceat(p[order], first) if len(first) else p
    classes = class_of(likeliest)
    runs = [
        UnitRun(int(plan.rows[at]), distinct[classes == at])
        for at in np.unique(classes)
        if plan.rows[at]
    ]
    return runs, distinct[plan.rows[classes] == 0]


def _chosen(part: PartRows | None, where: npt.NDArray[np.int64], p: Floats, salt: Salt) -> Bools:
    if part is None:
        return np.ones(len(where), np.bool_)
    classes = class_of(p)
    drawn = xx_array(where.view(np.uint64), np.uint64(salt.s0)) < part.likeliest.share * 2.0**64
    likeliest, (first, last) = part.likeliest, part.window
    found: Bools = (where >= first) & (where <= last)
    found |= classes >= likeliest.least
    found |= (classes == likeliest.least - 1) & drawn
    return found


def _row(**values: object) -> pa.RecordBatch:
    row = {name: 0 if kind == "int" else b"" for name, kind in _COLUMNS} | values
    kinds = {"int": pa.int32(), "binary": pa.binary()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in _COLUMNS])
    return pa.RecordBatch.from_pylist([row], schema=schema)


def _bytes(digest: Digest) -> bytes:
    return digest.count.to_bytes(8, "little") + digest.sum_bytes()


def _digest(data: bytes) -> Digest:
    return Digest(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:24], "little"))


def _probabilities(column: pa.Array) -> Floats:
    found = column.to_numpy(zero_copy_only=False)
    assert ((found >= 0) & (found <= 1)).all(), "P({±t}) must be in [0, 1]"
    return np.asarray(found, np.float64)

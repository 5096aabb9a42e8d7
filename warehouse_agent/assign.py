"""Rows to groups in Spark, by a plan, in one pass and without a shuffle.

A task counts the rows of each class as it meets them, and every so many make a group
(`GroupPlan.number`). Rows are put in key order within their Spark partition first, a local sort:
then what a group holds depends on which rows the partition has and not on the order in which files
were read, a retried task gives the same groups, and whoever has the keys of a (task, class) in
order, which is what the source is sent, knows the groups as well: rank // rows per group. Keys of a
group are near each other, which is what key sets and sources that read by index want.

Each task leaves at most one unfinished group a class, which costs about Φ_h; so tasks should be few
where rows are (`coalesce`).

Rejected: `row_number` over (task, class), for which Spark shuffles; and buckets by a hash of the
key, whose sizes vary (see `group`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import LongType, StructType

from warehouse_agent.executors import Batches, Task, driver_errors, task
from warehouse_agent.group import CLASS_EDGES, UNGROUPED, Floats, GroupPlan, Histogram

GROUP = "_driftline_group"
_P = "_driftline_p"
_TASK = "_driftline_task"


def histogram(rows: DataFrame, probability_sql: str, edges: Floats = CLASS_EDGES) -> Histogram:
    """How many rows are how likely to be updated; one Spark job, one small array from each task.

    Args:
        probability_sql: Spark SQL for P({±t}) of a row, in [0, 1] and never null.
        edges: of the classes, float64 [classes − 1], ascending.
    """
    partial = rows.selectExpr(f"cast({probability_sql} as double) as {_P}").mapInArrow(
        task(_histogram(edges)), "counts binary, updates binary"
    )
    with driver_errors():
        found = partial.collect()
    parts = (
        Histogram(edges, np.frombuffer(r.counts, np.int64), np.frombuffer(r.updates, np.float64))
        for r in found
    )
    return reduce(add, parts, Histogram.of(np.empty(0), edges))


def assign_groups(
    rows: DataFrame, probability_sql: str, plan: GroupPlan, *, order_by: Sequence[str]
) -> DataFrame:
    """These rows with a column GROUP, bigint; null where the plan groups nothing. Lazy.

    Args:
        rows: as narrow as the caller can make them: they are sorted within their Spark partitions.
        probability_sql: Spark SQL for P({±t}) of a row, in [0, 1] and never null.
        order_by: Spark SQL of what orders keys on both sides, ascending; where rows tie, groups may
            differ from one run to the next.
    """
    schema = StructType([*rows.schema.fields]).add(GROUP, LongType())
    return (
        rows.selectExpr(
            "*",
            f"cast({probability_sql} as double) as {_P}",
            f"spark_partition_id() as {_TASK}",
        )
        .sortWithinPartitions(*map(expr, order_by))
        .mapInArrow(task(_assign(plan, len(rows.columns))), schema)
    )


def _histogram(edges: Floats) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        found = Histogram.of(np.empty(0), edges)
        for batch in batches:
            found += Histogram.of(_probabilities(batch.column(0)), edges)
        yield pa.RecordBatch.from_pydict(
            {"counts": [found.counts.tobytes()], "updates": [found.updates.tobytes()]}
        )

    return run


def _assign(plan: GroupPlan, columns: int) -> Task:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        seen = np.zeros(len(plan.rows), np.int64)
        for batch in batches:
            if not batch.num_rows:
                continue
            number = batch.column(columns + 1)[0].as_py()
            groups = plan.number(_probabilities(batch.column(columns)), seen, number)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns[:columns], pa.array(groups, mask=groups == UNGROUPED)],
                names=[*batch.schema.names[:columns], GROUP],
            )

    return run


def _probabilities(column: pa.Array) -> Floats:
    found = column.to_numpy(zero_copy_only=False)
    assert ((found >= 0) & (found <= 1)).all(), "P({±t}) must be in [0, 1]"
    return np.asarray(found, np.float64)

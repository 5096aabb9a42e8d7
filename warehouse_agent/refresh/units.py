"""Our side in units, before the stream opens: of everything, or of the part that a budget allows.

A part is made of three: the rows most likely to have changed, the next rows in key order after
where the last part ended, so that every row has its turn, and room for rows past the largest key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from driftline.digests import Digest, Salt
from driftline.errors import ConfigurationError
from driftline.ranges import POSITION_MAX, POSITION_MIN
from pyspark.sql import DataFrame

from warehouse_agent.columns.layout import Layout
from warehouse_agent.methods import unit_assignment
from warehouse_agent.methods.groups import Grouped, PartOf
from warehouse_agent.methods.unit_assignment import Part
from warehouse_agent.planning import group_selection, sketch_size
from warehouse_agent.planning.network import Line
from warehouse_agent.refresh.job import Job
from warehouse_agent.spark.executors import driver_errors
from warehouse_agent.storage import data_files
from warehouse_agent.storage.data_files import DataFile, rows_of

LIKELIEST, IN_TURN = 0.6, 0.25  # of the budget; the rest is for new rows
TURN = "turn_from"  # of a fragment's notes: the position after the last window


@dataclass(frozen=True, slots=True)
class Units:
    """`compared` is the digest of our rows that the exchange is about.

    `next_turn`: the position where the next part's window begins, once this one is done.
    """

    grouped: Grouped
    compared: Digest
    next_turn: int | None = None


def in_units(
    job: Job,
    layout: Layout,
    files: Sequence[DataFile],
    salt: Salt,
    *,
    probability_sql: str,
    row_bytes: float,
    line: Line,
    budget: int | None,
) -> Units:
    """These rows, the working copy, in units; two or three Spark jobs.

    Args:
        budget: the most rows to read at the source; None: all are compared.

    Raises:
        ConfigurationError: more keys than units can name, or a part of a table whose keys are no
            integers within reach of each other.
    """
    count = sum(f.rows for f in files)
    bounds = data_files.bounds(files)
    embedding = sketch_size.embedding_for(count, bounds)
    wait = line.round_trip_bytes
    rows = rows_of(job.spark, layout, [f.uri for f in files])
    counted = unit_assignment.histogram(rows, probability_sql)
    key = group_selection.key_bytes(count, embedding.span)
    grouping = group_selection.grouping(
        counted, row_bytes=row_bytes, key_bytes=key, wait_bytes=wait
    )
    if budget is None:
        group_selection.refuse_too_many(job.name, count)
        found = unit_assignment.named(
            rows, layout, probability_sql, grouping, embedding, salt, count=count
        )
        sent = Grouped(embedding, found.pieces, found.hot, round(row_bytes), round(wait))
        return Units(sent, found.compared)
    if embedding.base is None or bounds is None:
        raise ConfigurationError(
            "Only a relation whose key is one integer, with all values within 2^31 of each other, "
            "can be compared in part.",
            where=job.name,
            remedy="Remove `read_at_most` from the fragment.",
        )
    window, next_turn = _window(job, layout, rows, bounds, int(IN_TURN * budget))
    likeliest = group_selection.most_likely(counted, int(LIKELIEST * budget))
    # A row that is not read by its key is not compared, so all have one.
    everyone = replace(grouping, rows=np.maximum(grouping.rows, 1))
    found = unit_assignment.named(
        rows,
        layout,
        probability_sql,
        everyone,
        embedding,
        salt,
        count=count,
        part=Part(likeliest, window),
    )
    zones = [window, (bounds[1] + 1, POSITION_MAX)] if bounds[1] < POSITION_MAX else [window]
    first, last = (np.array(ends, np.int64) for ends in zip(*zones, strict=True))
    part = PartOf(first, last, budget)
    sent = Grouped(
        embedding, found.pieces, found.hot, round(row_bytes), round(wait), found.rest, part
    )
    return Units(sent, found.compared, next_turn)


def _window(
    job: Job, layout: Layout, rows: DataFrame, bounds: tuple[int, int], count: int
) -> tuple[tuple[int, int], int]:
    """The positions of the next so many rows in turn, both ends inclusive, and where the turn after
    them begins: at the end from the least key again, whatever that is then. What lies below it goes
    with the first, as there may be new rows."""
    noted = job.remembered().get(TURN)
    start = noted if isinstance(noted, int) and bounds[0] < noted <= bounds[1] else bounds[0]
    position = layout.position_sql
    following = rows.where(f"{position} >= {start}").selectExpr(f"{position} as position")
    with driver_errors():
        nearest = following.orderBy("position").limit(count)
        row = nearest.selectExpr("count(*) as rows", "max(position) as last").first()
    assert row is not None
    last = int(row["last"]) if row["rows"] == count and row["last"] < bounds[1] else bounds[1]
    first = POSITION_MIN if start == bounds[0] else start
    return (first, last), last + 1 if last < bounds[1] else POSITION_MIN

"""Prove a slice of a view that was maintained incrementally: an independent road to some rows.

The view is computed for the anchors (the keys of the occurrence with most rows) whose hash falls in
one of SLICES, by the plain query over all rows of the other inputs, and compared with the rows of
these anchors in the new files: lineage and values, null-safely, floats by their bits. Each check
proves another slice, also where no row of the view differs and no version is made, so SLICES checks
prove all anchors. A mistake that concerns a share s of the rows is missed SLICES checks long with
probability 0, and in one with about 15/16 if it is one row: the proof finds mistakes of the
algorithm, which concern many rows, not flipped bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from driftline.errors import ProofFailed

from warehouse_agent.columns.row_codes import RowSlice
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.data_frames import RowFunction, rows_of
from warehouse_agent.tasks.rewrites.view_rows import (
    PAIRED_BYTES_MAX,
    have_own_lineage,
    paired,
)
from warehouse_agent.views.evaluate import (
    PinnedInput,
    evaluated_over,
    query_errors,
    rows_in,
)
from warehouse_agent.views.maintenance.pairing import REPORT, SHOWN, ViewDifferences, differences
from warehouse_agent.views.maintenance.view_job import ViewJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICES = 16
COLLECTED_ROWS_MAX = 500_000  # of a slice, compared in this process
COLLECTED_BYTES_MAX = PAIRED_BYTES_MAX // 2  # of a slice of the files, as far as footers say
# How Spark computes, not what: rows of large inputs that join with no row of the slice are dropped
# before they are shuffled (1.6 s instead of 2.4 s for Q3 at scale 0.5).
_EXECUTION = {
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "1MB",
}


def check(
    job: ViewJob, own: SparkSession, files: Sequence[DataFile], layout: ViewLayout, number: int
) -> None:
    """Compare a slice of a view with what the query gives.

    Args:
        own: a session of `evaluate.session_of`.
        files: of the view, with this layout.
        number: of the slice; counted modulo SLICES.

    Raises:
        ProofFailed: rows differ; the details count them and show some.
        ViewFailed: an expression fails on a row.
    """
    number %= SLICES
    for key, value in _EXECUTION.items():
        own.conf.set(key, value)
    anchor, part = _anchor(job.inputs), RowSlice(number, SLICES)
    rows = rows_in(own, job.name, job.query, job.inputs, {anchor: part})
    right, _ = evaluated_over(own, job.name, job.query, layout.recipe, job.inputs, rows)
    first = sum(len(one.lineage) for one in job.inputs[:anchor])
    anchors = layout.lineage_names[first : first + len(job.inputs[anchor].lineage)]
    schema = layout.file_schema
    ours = rows_of(own, files, schema, then=RowFunction(partial(part.rows, anchors), schema))
    if _fits(job, files):
        wrong = _differences(ours, right, layout, job.name)
    else:
        wrong = differences(ours, right, layout, job.name)
    if wrong:
        raise ProofFailed(
            f"Incremental maintenance gave other rows than the query: {wrong}, in slice {number} of"
            f" {SLICES}. This is a bug of Driftline.",
            where=job.name,
            remedy="Nothing of the view was published. Report it; the next refresh recomputes the"
            " view.",
            details=wrong.details,
        )


def _anchor(inputs: Sequence[PinnedInput]) -> int:
    """Return the occurrence with most rows, the first of several: few keys fill few slices."""
    return max(range(len(inputs)), key=lambda i: sum(f.rows for f in inputs[i].files))


def _fits(job: ViewJob, files: Sequence[DataFile]) -> bool:
    """Return True if a slice of these files is compared in this process."""
    if sum(f.rows for f in files) > SLICES * COLLECTED_ROWS_MAX:
        return False
    size = max(sum(f.size for f in files), job.steps.size_of_rows(files))
    return size <= SLICES * COLLECTED_BYTES_MAX


def _differences(
    ours: DataFrame, right: DataFrame, layout: ViewLayout, name: str
) -> ViewDifferences:
    """Compare a slice as `pairing.differences` does, in this process: Spark's join would cost more
    than the query.

    Raises:
        ProofFailed: a lineage occurs twice.
        ViewFailed: Spark cannot evaluate the query.
    """
    with query_errors(name):
        sides = [rows.toArrow().cast(layout.file_schema) for rows in (ours, right)]
    published, wanted = (side.combine_chunks() for side in sides)
    for side in (published, wanted):
        if not have_own_lineage(side, layout):
            raise ProofFailed(
                "A lineage of the view is null or occurs twice.", where=name, remedy=REPORT
            )
    pairs = paired(published, wanted, layout)
    wrong = [(published, pairs.deleted), (wanted, pairs.inserted), (published, pairs.updated[0])]
    shown = [
        ", ".join(_shown(value) for value in row.values())
        for rows, at in wrong
        for row in rows.select([*layout.lineage_names]).take(pa.array(at[:SHOWN])).to_pylist()
    ]
    return ViewDifferences(
        missing=len(pairs.inserted),
        extra=len(pairs.deleted),
        different=len(pairs.updated[0]),
        shown=tuple(shown[:SHOWN]),
    )


def _shown(value: int | bytes) -> str:
    return value.hex().upper() if isinstance(value, bytes) else str(value)

"""Prove a slice of a view that was maintained incrementally: an independent road to some rows.

The view is computed for the anchors (the keys of the first occurrence) whose hash falls in one of
SLICES, by the plain query over all rows of the other inputs, and compared with the rows of these
anchors in the new files: lineage and values, null-safely, floats by their bits. Each version proves
another slice, so SLICES versions prove all anchors. A mistake that concerns a share s of the rows
is missed SLICES versions long with probability 0, and in one version with about 15/16 if it is one
row: the proof finds mistakes of the algorithm, which concern many rows, not flipped bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline.errors import ProofFailed

from warehouse_agent.storage.data_files import rows_of
from warehouse_agent.views.evaluate import evaluated_over, lineage_names, rows_in
from warehouse_agent.views.next_version import NextVersion
from warehouse_agent.views.pairing import differences
from warehouse_agent.views.view_job import ViewJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLICES = 16


def check(job: ViewJob, own: SparkSession, found: NextVersion) -> None:
    """Compare a slice of a new version with what the query gives.

    Args:
        own: a session of `evaluate.session_of`.

    Raises:
        ProofFailed: rows differ; the details count them and show some.
        ViewFailed: an expression fails on a row.
    """
    number = (found.base.version + 1 if found.base else 0) % SLICES
    first, layout = job.inputs[0], found.layout
    rows = [rows_in(own, one) for one in job.inputs]
    names = lineage_names(first)
    rows[0] = rows[0].where(_in_slice(names, number))
    right, _ = evaluated_over(own, job.name, job.query, layout.recipe, job.inputs, rows)
    new = rows_of(own, layout, [f.uri for f in found.files])
    ours = new.where(_in_slice(layout.lineage_names[: len(names)], number))
    if wrong := differences(ours, right, layout, job.name):
        raise ProofFailed(
            f"Incremental maintenance gave other rows than the query: {wrong}, in slice {number} of"
            f" {SLICES}. This is a bug of Driftline.",
            where=job.name,
            remedy="Nothing of the view was published. Report it; the next refresh recomputes the"
            " view.",
            details=wrong.details,
        )


def _in_slice(names: tuple[str, ...], number: int) -> str:
    return f"pmod(xxhash64({', '.join(names)}), {SLICES}) = {number}"

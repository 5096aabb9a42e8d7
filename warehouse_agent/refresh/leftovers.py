"""Merge the rows that cut exchanges staged into the working copy (decision 4).

The folders of the exchanges follow each other, the oldest first. Rows of a folder replace older
rows of the same keys and carry their statistics on. Only files that hold replaced rows are written
again.

 1. The working copy may be anything: the exchange compares it with the source. So rows are replaced
    by position, which is the key or a hash of it. Another row at the same position would be removed
    with it, and come again.
 2. Rows whose positions do not fit into a task are replaced by Spark's joins, by key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from driftline.arrays import Integers
from driftline.digests import Salt

from warehouse_agent.columns.layout import Layout, quoted
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.tasks.digests import list_rows
from warehouse_agent.tasks.key_lookup import fits
from warehouse_agent.tasks.rewrite import ByPosition, files_holding, rewrite
from warehouse_agent.tasks.row_statistics import Stamp


def merge(
    job: Job, files: Sequence[DataFile], layout: Layout, folders: Sequence[str], stamp: Stamp
) -> tuple[DataFile, ...]:
    """Return files of the working copy with the rows of staged folders, the oldest folder first.

    Raises:
        FrameDamaged, ValueDoesNotFit: the staged rows cannot be stored.
        WarehouseUnavailable: a file cannot be read or written.
    """
    staged = [job.staging.uris(folder) for folder in folders]
    came = [job.write_staged(f"taken-{i}", uris, layout, stamp) for i, uris in enumerate(staged)]
    updated = sum(f.rows for taken in came for f in taken)
    merged = list(files)
    for number, (uris, taken) in enumerate(zip(staged, came, strict=True)):
        replace = _replaced if fits(job.steps, taken) else _replaced_by_join
        merged, before = replace(job, merged, taken, layout, number)
        if before:
            part = f"counted-{number}"
            taken = job.write_staged(part, uris, layout, stamp, before, updated)  # noqa: PLW2901
        merged += taken
    return tuple(merged)


def _replaced(
    job: Job, files: list[DataFile], taken: list[DataFile], layout: Layout, number: int
) -> tuple[list[DataFile], list[DataFile]]:
    """Return files without the rows of the keys in `taken`, and files with only these rows."""
    if not files or not taken:
        return files, []
    listed = list_rows(job.steps, taken, layout, _all, Salt.fresh())
    removal = ByPosition(np.unique(listed.positions))
    ends = int(removal.positions[0]), int(removal.positions[-1])
    near = [f for f in files if f.meets(*ends)]
    hit = files_holding(job.steps, near, layout, removal)
    if not hit:
        return files, []
    place = (job.steps, job.store, job.name, job.folder(f"superseded-{number}"))
    kept, before = rewrite(*place, hit, layout, removal=removal)
    return [*(f for f in files if f not in hit), *kept], before


def _replaced_by_join(
    job: Job, files: list[DataFile], taken: list[DataFile], layout: Layout, number: int
) -> tuple[list[DataFile], list[DataFile]]:
    """Return the same as `_replaced`, for rows of any number."""
    if not files or not taken:
        return files, []
    spark = job.steps.spark(job.steps.size_of_rows([*files, *taken]))
    keys = list(layout.key_names)
    named = [quoted(name) for name in keys]
    new = rows_of(spark, layout, [f.uri for f in taken]).select(*named).distinct()
    old = rows_of(spark, layout, [f.uri for f in files])
    before = job.write(f"replaced-{number}", old.join(new, keys, "left_semi"), layout)
    if not before:
        return files, []
    return job.write(f"superseded-{number}", old.join(new, keys, "left_anti"), layout), before


def _all(positions: Integers) -> Integers:
    return np.zeros(len(positions), np.int64)

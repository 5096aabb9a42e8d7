"""Merge the rows that cut exchanges staged into the working copy (decision 4).

The folders of the exchanges follow each other, the oldest first. Rows of a folder replace older
rows of the same keys, and carry the statistics of the working copy's rows on. Only files that hold
replaced rows are written again, and once, however many folders there are.

 1. The working copy may be anything: the exchange compares it with the source. So rows are replaced
    by position, which is the key or a hash of it. Another row at the same position would be removed
    with it, and come again.
 2. Rows whose positions do not fit into a task are replaced by Spark's joins, by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from driftline.arrays import Integers
from driftline.rows.digests import Salt

from warehouse_agent.columns.layout import Layout, quoted
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.tasks.digests import RowChoice, list_rows
from warehouse_agent.tasks.key_lookup import fits
from warehouse_agent.tasks.rewrites.replaced_rows import RowsByPosition, files_holding, rewrite
from warehouse_agent.tasks.row_statistics import StatisticsStamp

Parts = tuple[list[DataFile], list[DataFile]]
# Returns files without the rows that a folder newer than this number has, and files with only
# these rows. The working copy is 0, the oldest folder 1.
Replaced = Callable[[Sequence[DataFile], int], Parts]


def merge(
    job: Job,
    files: Sequence[DataFile],
    layout: Layout,
    folders: Sequence[str],
    stamp: StatisticsStamp,
) -> tuple[DataFile, ...]:
    """Return files of the working copy with the rows of staged folders, the oldest folder first.

    Raises:
        FrameDamaged, ValueDoesNotFit: the staged rows cannot be stored.
        WarehouseUnavailable: a file cannot be read or written.
    """
    staged = [job.staging.uris(folder) for folder in folders]
    came = [job.write_staged(f"taken-{i}", uris, layout, stamp) for i, uris in enumerate(staged)]
    every = [f for taken in came for f in taken]
    replaced = (_by_position if fits(job.steps, every) else _by_join)(job, came, layout)
    merged, before = replaced(files, 0)
    for number, (uris, taken) in enumerate(zip(staged, came, strict=True)):
        if before:
            part, updated = f"counted-{number}", sum(f.rows for f in every)
            taken = job.write_staged(part, uris, layout, stamp, before, updated)  # noqa: PLW2901
        merged += replaced(taken, number + 1)[0]
    return tuple(merged)


def _by_position(job: Job, came: Sequence[Sequence[DataFile]], layout: Layout) -> Replaced:
    """Replace rows by position; `came` has the files of each folder."""
    numbers = np.array([n for n, taken in enumerate(came, 1) for _ in taken], np.int64)
    every = [f for taken in came for f in taken]
    listed = list_rows(job.steps, every, layout, RowChoice(_all), Salt.fresh())
    positions, at = np.unique(listed.positions, return_inverse=True)
    newest = np.zeros(len(positions), np.int64)
    np.maximum.at(newest, at, numbers[listed.file])

    def replaced(files: Sequence[DataFile], number: int) -> Parts:
        gone = positions[newest > number]
        if not files or not len(gone):
            return list(files), []
        removal, ends = RowsByPosition(gone), (int(gone[0]), int(gone[-1]))
        hit = files_holding(job.steps, [f for f in files if f.meets(*ends)], layout, removal)
        if not hit:
            return list(files), []
        folder = job.folder(f"superseded-{number}")
        kept, before = rewrite(job.steps, folder, hit, layout, removal=removal)
        return [*(f for f in files if f not in hit), *kept], before

    return replaced


def _by_join(job: Job, came: Sequence[Sequence[DataFile]], layout: Layout) -> Replaced:
    """Replace rows by key, of any number; `came` has the files of each folder."""

    def replaced(files: Sequence[DataFile], number: int) -> Parts:
        newer = [f for taken in came[number:] for f in taken]
        if not files or not newer:
            return list(files), []
        spark = job.steps.spark_to_join(job.steps.size_of_rows([*files, *newer]))
        keys = list(layout.key_names)
        named = [quoted(name) for name in keys]
        new = rows_of(spark, layout, [f.uri for f in newer]).select(*named).distinct()
        old = rows_of(spark, layout, [f.uri for f in files])
        before = job.write(f"replaced-{number}", old.join(new, keys, "left_semi"), layout)
        if not before:
            return list(files), []
        kept = job.write(f"superseded-{number}", old.join(new, keys, "left_anti"), layout)
        return kept, before

    return replaced


def _all(positions: Integers) -> Integers:
    return np.zeros(len(positions), np.int64)

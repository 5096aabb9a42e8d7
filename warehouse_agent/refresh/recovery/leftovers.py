"""Merge the rows that cut exchanges staged into the working copy (decision 4).

The folders of the exchanges follow each other, the oldest first. Rows of a folder replace older
rows of the same keys, and carry the statistics of the working copy's rows on. Only files that hold
replaced rows are written again, and once, however many folders and rows there are.

The working copy may be anything: the exchange compares it with the source. So rows are replaced by
position, which is the key or a hash of it. Another row at the same position would be removed with
it, and come again.
"""

from __future__ import annotations

from collections.abc import Sequence

from warehouse_agent.columns.layout import Layout
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.rewrites.replaced_rows import rewrite_without, superseded
from warehouse_agent.tasks.row_statistics import StatisticsStamp


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
    every = [f for group in came for f in group]
    gone = superseded(job.steps, [files, every], layout)
    if before := [f for f in files if f.path in gone.bits]:
        updated = sum(f.rows for f in every)
        came = [
            job.write_staged(f"counted-{i}", uris, layout, stamp, before, updated)
            for i, uris in enumerate(staged)
        ]
    gone = gone.joined(superseded(job.steps, came, layout))
    merged: list[DataFile] = []
    for number, group in enumerate([files, *came]):
        hit = [f for f in group if f.path in gone.bits]
        merged += [f for f in group if f.path not in gone.bits]
        if hit:
            folder = job.folder(f"superseded-{number}")
            merged += rewrite_without(job.steps, folder, hit, layout, gone)
    return tuple(merged)

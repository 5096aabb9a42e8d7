"""Repair: rows in missing or damaged data files count as absent and are pulled again.

A refresh begins from the newest version without its lost files: files that are missing, have
another size, or were found damaged by a read and still are. The comparison with the source finds
the lost rows beside the changed ones, and the next version no longer names the lost files.

 1. A failed read notes damaged files by path in the fragment's notes (`note_failure`). A
    data file never changes, so the note holds for every version that has the file. The files are
    read again before they are given up, and the note stays until then (`damage_left`).
 2. A file that cannot be reached is not lost: storage that refuses ends the refresh
    (`file_damage`). If most files of a version are missing, a disk is probably not mounted: that
    needs a decision (`verify --repair`).
 3. A repaired version has no change feed: without before-images nobody knows which of the rows that
    came had changed, and which lost rows were deleted at the source.
 4. The log tells how many rows were lost, so the sketch of the opening is large enough.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from driftline.errors import DriftlineError, ProofFailed, WarehouseUnavailable

from warehouse_agent.history.notes import note_damage
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import DATA_FILE, failures
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import file_damage, quantiles
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.quantiles import Samples
from warehouse_agent.tasks.steps import Steps

MISSING_SHARE_MAX = 0.5  # of a version's files; a refresh does not pull more of them unasked
# Texts of Spark's own reader about a file that it cannot read.
_UNREADABLE = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "parquet", "Parquet", "PATH_NOT_FOUND")

_log = logging.getLogger("driftline")


def published(job: Job) -> Snapshot | None:
    """Return the newest version without its lost files; None: nothing was ever published.

    Raises:
        WarehouseUnavailable: the table cannot be read, is older than what was published, or most
            of its files are missing.
    """
    try:
        head = formats.head(job.store, job.name)
    except WarehouseUnavailable:
        formats.mend(job.store, job.name)
        head = formats.head(job.store, job.name)
    base = restored.checked(job, head)
    if base is None:
        return None
    wrong = absent(job.store, job.name, base, accepts_many=job.options.repair)
    told = {path for fragment, path in job.options.suspects if fragment == job.name}
    noted = job.notes.damaged.keys() | told
    if suspects := [f for f in base.files if f.path in noted and f.path not in wrong]:
        wrong |= file_damage.examine(job.steps, job.store, job.name, base.layout, suspects)
    job.examined.update(wrong, (f.path for f in suspects))
    return replace(base, lost=tuple(f for f in base.files if f.path in wrong))


def absent(
    store: Store, name: str, version: Snapshot, *, accepts_many: bool = False
) -> dict[str, str]:
    """Return what is wrong with files of a version that are missing or have another size, by path.

    Raises:
        WarehouseUnavailable: a folder cannot be listed, or most files are missing and that is not
            accepted.
    """
    wrong = file_damage.absent(store, name, version.files)
    if not accepts_many:
        _refuse_many(name, version, wrong)
    return wrong


def taken_for_lost(
    store: Store, name: str, version: Snapshot, noted: Mapping[str, str]
) -> Snapshot:
    """Return a version without the files that a refresh would find lost, for a forecast.

    No file is read: those that are noted as damaged are taken to be so still. Raises as `absent`.
    """
    wrong = {**noted, **absent(store, name, version)}
    return replace(version, lost=tuple(f for f in version.files if f.path in wrong))


def note_failure(job: Job, error: DriftlineError) -> None:
    """Note damaged files that may be why a refresh failed; the next attempt repairs them.

    Every file is read. The error then names the damaged files and is retryable.
    """
    if not _is_of_reading(error):
        return
    try:
        base = formats.head(job.store, job.name)
        wrong = find_damage(job.steps, job.store, base, job.name) if base else {}
        if base is None or wrong.keys() <= job.examined:
            return
        note_damage(job.store, job.name, wrong)
    except Exception:  # of storage or Spark; the error of the refresh says more
        _log.debug("damaged files could not be looked for", exc_info=True)
        return
    error.details.update(file_damage.listed(wrong))
    error.details.pop(DATA_FILE, None)
    error.remedy = "The next refresh pulls again what the damaged files held."
    error.is_retryable = True


def find_damage(steps: Steps, store: Store, version: Snapshot, name: str) -> dict[str, str]:
    """Read all files of a version; return what is wrong with them, by path.

    Raises:
        WarehouseUnavailable: the storage does not let a file be read.
        PySparkException, Py4JError: Spark failed on a file.
    """
    wrong = file_damage.absent(store, name, version.files)
    left = [f for f in version.files if f.path not in wrong]
    return wrong | file_damage.examine(steps, store, name, version.layout, left)


def damage_left(job: Job, base: Snapshot | None) -> dict[str, str]:
    """Return what is known of damage after a refresh, by path: of files of the base that were not
    read again. What others note meanwhile, where storage has no locks, is kept by `Notes.write`."""
    there = {f.path for f in base.files} if base else set()
    noted = job.notes.damaged
    return {path: noted[path] for path in noted if path in there - job.examined}


def positions(steps: Steps, base: Snapshot, samples: int) -> Samples:
    """Sample the positions of the rows of a version with an integer key, `samples` of each file.

    Lost rows are taken as spread evenly between the bounds of their file.
    """
    sampled = [quantiles.samples_of(steps, base.sound, base.layout, samples)]
    for file in base.lost:
        if file.bounds is not None:
            least, greatest = file.bounds
            count = min(file.rows, quantiles.SAMPLES, greatest - least + 1)
            step = max((greatest - least) // max(count - 1, 1), 1)
            spread = np.array([least + step * i for i in range(count)], np.int64)
            sampled.append(Samples(spread, np.full(count, file.rows / max(count, 1))))
    return quantiles.joined(sampled)


def without_feed(store: Store, name: str, feed: VersionFeed, base: Snapshot) -> VersionFeed:
    """Remove the feed of a version that lost files; return the changes that are certain.

    In `feed` each lost row that came again is an insert. So at least the inserts above the number
    of lost rows were inserted; if there are fewer, at least the difference was deleted.
    """
    remove_feed(store, name, feed)
    new = feed.counts.get("insert", 0) - base.rows_lost
    gone = feed.counts.get("delete", 0) - min(new, 0)
    return VersionFeed(counts=feed.counts | {"insert": max(new, 0), "delete": gone})


def remove_feed(store: Store, name: str, feed: VersionFeed) -> None:
    """Remove the files of a feed that no version will have."""
    if feed.folder is not None:
        with contextlib.suppress(WarehouseUnavailable):  # no commit names it: `gc` removes it
            store.remove(PRIVATE, "changes", name, *feed.folder.split("/"))


def _refuse_many(name: str, base: Snapshot, wrong: dict[str, str]) -> None:
    missing = [path for path, what in wrong.items() if what == file_damage.MISSING]
    if len(missing) <= MISSING_SHARE_MAX * len(base.files):
        return
    raise WarehouseUnavailable(
        f"{len(missing):,} of {counted(len(base.files), 'data file')} of version {base.version} "
        f"{'is' if len(missing) == 1 else 'are'} missing; the first is {missing[0]}.",
        where=name,
        remedy="Check that the storage is mounted and complete, or restore the files. If they are "
        f"lost, run: driftline verify {name} --repair",
        details=file_damage.listed(wrong),
    )


def _is_of_reading(error: DriftlineError) -> bool:
    """Return True if a file that is damaged or cannot be read may be the cause."""
    if isinstance(error, ProofFailed | WarehouseUnavailable):
        return DATA_FILE in error.details
    why = error.__cause__
    return any(word in str(why) for word in _UNREADABLE) and isinstance(why, failures())

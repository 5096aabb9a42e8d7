"""Is what was published still what is stored? Every file is there, and every row is what it was.

Cheap first: the files of a version exist with their sizes. Then all of them are read in Spark's
tasks, each row encoded and fingerprinted again, and compared with the fingerprint beside it
(`damage`). Nothing but a note of the damage is written, and no source is asked: what was lost is
pulled again by a refresh (`mend`).

Running it again does not help against damage, so no failure here is retryable, unlike in a refresh.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from driftline.errors import DriftlineError, Locked, WarehouseUnavailable
from pyspark.sql import SparkSession

from warehouse_agent.refresh import repair as mend
from warehouse_agent.refresh import restored
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import cause
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import file_damage
from warehouse_agent.tasks.file_damage import SPARK_FAILURES

_REMEDY = "Run `driftline verify {} --repair`, or the next refresh, to pull their rows again."
_NOT_NOTED = (
    "This could not be noted: {} Run `driftline verify {} --repair` to pull their rows again."
)
NOTE_WAIT_S = 60.0  # for a refresh that runs, before a note of damage is given up
_TRY_S = 0.5  # between two attempts to have the fragment's lock


def verified(store: Store, name: str, snapshot: Snapshot, wrong: dict[str, str]) -> int:
    """Return the rows of the newest version, which was read back; `wrong`: as `damaged` found.

    Raises:
        WarehouseUnavailable: files are missing or damaged, by name, or the table is older than what
            was published.
    """
    if wrong:
        raise _damaged(name, wrong)
    notes = store.read_json(PRIVATE, "fragments", f"{name}.json")
    if (noted := restored.newer(notes, snapshot)) is not None:
        restored.refuse(name, snapshot, noted)
    if snapshot.rows != snapshot.record.rows:
        held = counted(snapshot.rows, "row")
        raise WarehouseUnavailable(
            f"The files hold {held}, and the version {snapshot.record.rows:,}.",
            where=name,
            remedy="Restore the table from a backup, or move its folder away for a new first load.",
        )
    return snapshot.rows


def damaged(
    spark: SparkSession, store: Store, name: str, snapshot: Snapshot, *, repair: bool = False
) -> dict[str, str]:
    """Return what is wrong with the newest version's files, by path; noted for the next refresh.

    Args:
        repair: whether the caller tells a refresh of them at once, which then needs no note.

    Raises:
        WarehouseUnavailable: the files cannot be read; or some are damaged and it could not be
            noted.
    """
    try:
        wrong = mend.found(spark, store, snapshot, name)
    except SPARK_FAILURES as error:
        raise WarehouseUnavailable(f"The files cannot be read: {cause(error)}", where=name) from (
            error
        )
    if wrong:
        try:
            with _locked(store, name, 0.0 if repair else NOTE_WAIT_S):
                mend.note(store, name, wrong)
        except DriftlineError as error:
            if not repair:
                raise _damaged(name, wrong, _NOT_NOTED.format(error.message, name)) from error
    return wrong


@contextlib.contextmanager
def _locked(store: Store, name: str, wait_s: float) -> Iterator[None]:
    """Hold the fragment's lock, waiting for it so long. Raises Locked."""
    ends = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(store.lock(name))
                break
            except Locked:
                if time.monotonic() >= ends:
                    raise
            time.sleep(_TRY_S)
        yield


def _damaged(name: str, wrong: dict[str, str], remedy: str | None = None) -> WarehouseUnavailable:
    path, what = next(iter(wrong.items()))
    more = f"; {counted(len(wrong) - 1, 'more file')} missing or damaged" if len(wrong) > 1 else ""
    state = what if what == file_damage.MISSING else f"damaged: {what.rstrip('.')}"
    return WarehouseUnavailable(
        f"Data file {path} is {state}{more}.",
        where=name,
        remedy=_REMEDY.format(name) if remedy is None else remedy,
        details=file_damage.listed(wrong),
    )


def check_files(store: Store, name: str, snapshot: Snapshot) -> None:
    """Every data file of a version is there and has its size.

    Raises:
        WarehouseUnavailable: with the files that are not.
    """
    if wrong := file_damage.absent(store, name, snapshot.files):
        raise _damaged(name, wrong)

"""`verify`: is every published file there, and is every row still what it was?

First the files of a version must exist with their sizes. Then Spark's tasks read all of them,
encode and fingerprint each row again, and compare it with the stored fingerprint
(`tasks.file_damage`). Only a note of the damage is written, and no source is asked: a refresh pulls
lost rows again (`refresh.repair`). To verify again does not help, so no error is retryable here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tenacity
from driftline.errors import DriftlineError, Locked, WarehouseUnavailable

from warehouse_agent.history.notes import Notes, note_damage
from warehouse_agent.refresh.recovery import repair as damage
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import cause, failures
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.tasks import file_damage
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.visible_versions import warehouse_versions

_REMEDY = "Run `driftline verify {} --repair`, or the next refresh: it pulls their rows again."
_NOT_NOTED = (
    "This could not be noted: {} Run `driftline verify {} --repair`: it pulls their rows again."
)
NOTE_WAIT_S = 60.0  # for a running refresh, before a note of damage is given up
_TRY_S = 0.5  # between two attempts to take the fragment's lock


def verified(store: Store, name: str, snapshot: Snapshot, wrong: dict[str, str]) -> int:
    """Return the number of rows of the newest version, which was read back.

    Args:
        wrong: missing and damaged files, as `damaged` returned them.

    Raises:
        WarehouseUnavailable: files are missing or damaged, or the table is older than the last
            published version.
    """
    if wrong:
        raise _damaged(name, wrong)
    if (noted := Notes.read(store, name).newer(snapshot)) is not None:
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
    steps: Steps, store: Store, name: str, snapshot: Snapshot, *, repair: bool = False
) -> dict[str, str]:
    """Find missing and damaged files of the newest version; note them for the next refresh.

    Args:
        repair: the caller refreshes at once, so the note may be missing.

    Returns:
        The reason for each file, by path.

    Raises:
        WarehouseUnavailable: the files cannot be read; or some are damaged and could not be noted.
    """
    try:
        wrong = damage.find_damage(steps, store, snapshot, name)
    except failures() as error:
        message = f"The files cannot be read: {cause(error)}"
        raise WarehouseUnavailable(message, where=name) from error
    if wrong:
        try:
            with _locked(store, name, 0.0 if repair else NOTE_WAIT_S):
                note_damage(store, name, wrong)
        except DriftlineError as error:
            if not repair:
                raise _damaged(name, wrong, _NOT_NOTED.format(error.message, name)) from error
    return wrong


@contextlib.contextmanager
def _locked(store: Store, name: str, wait_s: float) -> Iterator[None]:
    """Hold the fragment's lock; wait up to `wait_s` for it. Raises Locked."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Locked),
        stop=tenacity.stop_after_delay(wait_s),
        wait=tenacity.wait_fixed(_TRY_S),
        reraise=True,
    )
    with contextlib.ExitStack() as stack:
        retrying(lambda: stack.enter_context(store.lock(name)))
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


def check_files(store: Store, name: str, snapshot: Snapshot | ViewSnapshot) -> None:
    """Check that every data file of a version exists and has its size.

    Raises:
        WarehouseUnavailable: some do not; the details name them.
    """
    if wrong := file_damage.absent(store, name, snapshot.files):
        raise _damaged(name, wrong)


def check_rows(name: str, snapshot: Snapshot, rows: int) -> None:
    """Check that the files of a version had its number of `rows` when they were read.

    Raises:
        WarehouseUnavailable: they had another; `verify` names the file.
    """
    if rows != snapshot.record.rows:
        raise WarehouseUnavailable(
            f"{counted(rows, 'row')} were read, and the version has {snapshot.record.rows:,}.",
            where=name,
            remedy=_REMEDY.format(name),
        )


def given_version(store: Store, name: str, newest: int | None) -> str:
    """Return in words which version of a fragment or a view readers are given, if not the newest.

    Its files are checked as `check_files` does.

    Raises:
        WarehouseUnavailable: files of it are missing. A refresh of a view over it shows the newest.
    """
    member = warehouse_versions.visible_member(store, name)
    if member is None or member.version == newest:
        return ""
    given = formats.any_head(store, name, version=member.version)
    if given is not None:
        try:
            check_files(store, name, given)
        except WarehouseUnavailable as wrong:
            wrong.remedy = (
                f"Readers are given this version, {given.version}. Refresh a view over {name} by"
                " its name: readers are then given the newest one."
            )
            raise
    return f"; readers are given version {member.version} until the views over it follow"

"""Check that every published file is there, and that every row is still what it was (`verify`).

First the files of a version must exist with their sizes. Then Spark's tasks read all of them,
encode and fingerprint each row again, and compare it with the stored fingerprint
(`tasks.file_damage`). Only a note of the damage is written, and no source is asked: a refresh pulls
lost rows again (`refresh.recovery.repair`). To verify again does not help, so no error is retryable
here. A view is computed again (`view_verification`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tenacity
from driftline.errors import DriftlineError, Locked, ProofFailed, WarehouseUnavailable

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history.notes import Notes, note_damage
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.recovery import repair as damage
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.report import Report, counted, utc_now
from warehouse_agent.runs.each_fragment import published
from warehouse_agent.spark.executors import cause, failures
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance.file_checks import check_files, damage_error, given_version
from warehouse_agent.tasks.steps import StepLog, Steps

_NOT_NOTED = (
    "This could not be noted: {} Run `driftline verify {} --repair`: it pulls their rows again."
)
NOTE_WAIT_S = 60.0  # for a running refresh, before a note of damage is given up
_TRY_S = 0.5  # between two attempts to take the fragment's lock


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A table whose newest version was read back, and is what it was.

    Attributes:
        given: the older version that readers are given; None: the newest.
        others: in words, what another program wrote after it, with the same rows; empty: nothing.
    """

    report: Report
    given: int | None
    others: str = ""


@dataclass(frozen=True, slots=True)
class UnsoundTable:
    """A table that a refresh has to repair.

    Attributes:
        files: why each missing or damaged file of it is so, by path.
        why: what is wrong if it is not these files.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def verify(
    config: WarehouseConfig,
    store: Store,
    spark: DeferredSession,
    table: Fragment | View,
    *,
    repair: bool,
) -> VerifiedTable | UnsoundTable:
    """Read the newest version of a table, and check each row.

    Args:
        repair: the caller refreshes what is unsound; without, that is an error.

    Raises:
        NotFound: it is not published, or an input of the view is not.
        ProofFailed: rows of the view differ.
        RecipeChanged: the view means something else now.
        WarehouseUnavailable: it is damaged, or older than the last published version.
    """
    if isinstance(table, View):
        from warehouse_agent.table_maintenance.view_verification import recomputed  # and sqlglot

        try:
            report = recomputed(config, store, spark, table)
            return VerifiedTable(report, given_version(store, table.name, report.version))
        except (ProofFailed, WarehouseUnavailable) as problem:
            if not repair:
                raise
            return UnsoundTable(table.name, why=problem.message)
    name = table.name
    snapshot = published(store, name)
    report = Report(name, "verify", snapshot.version, snapshot.version)
    with report.phase("verify"):
        if not repair:
            check_files(store, name, snapshot)  # before Spark is started
        steps = Steps.of(config, spark, StepLog.of(report, "verify"), store)
        wrong = damaged(steps, store, name, snapshot, repair=repair)
    if wrong and repair:
        return UnsoundTable(name, wrong)
    report.rows_total = verified(store, name, snapshot, wrong)
    others = restored.same_rows(steps, store, name, snapshot)
    try:
        given = given_version(store, name, snapshot.version)
    except WarehouseUnavailable as problem:
        if not repair:
            raise
        return UnsoundTable(name, why=problem.message)  # the newest version is sound: it is flipped
    report.proof, report.checked_at = "values", utc_now()
    return VerifiedTable(report, given, others)


def repairing(unsound: Sequence[UnsoundTable], views: Mapping[str, View]) -> Options:
    """Return the options of the refresh that repairs these tables."""
    return Options(
        repair=True,
        suspects=frozenset((one.name, path) for one in unsound for path in one.files),
        anew=frozenset(one.name for one in unsound if one.name in views),
    )


def verified(store: Store, name: str, snapshot: Snapshot, wrong: dict[str, str]) -> int:
    """Return the number of rows of the newest version, which was read back.

    Args:
        wrong: missing and damaged files, as `damaged` returned them.

    Raises:
        WarehouseUnavailable: files are missing or damaged, or the table is older than the last
            published version.
    """
    if wrong:
        raise damage_error(name, wrong)
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
                raise damage_error(
                    name, wrong, remedy=_NOT_NOTED.format(error.message, name)
                ) from error
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

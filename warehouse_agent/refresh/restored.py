"""A table that is older than what was published: restored from a backup, or its log was cut.

After each commit the version and the table's id are noted. A head that is older than the note is
refused, because readers may have seen the versions that are gone. If it is accepted
(`--accept-restored`), the refresh first publishes the head's rows again under each missing number
and the next one, without a change feed. So a reader who followed the feed to a missing version must
read a whole version, and nobody gets changes between versions that never followed each other. If
the log is gone too, or the table was moved away, a first load counts from 0: then readers of the
feed must be told to begin again.

The note never accuses wrongly: it is written after the commit, so a crash leaves a note older than
the head, and a new table of the same name has another id.
"""

from __future__ import annotations

from dataclasses import replace

from driftline.errors import WarehouseUnavailable

from warehouse_agent.history.record import CHECKED, HEAD
from warehouse_agent.refresh.job import Job
from warehouse_agent.report import utc_now
from warehouse_agent.storage import formats, row_security
from warehouse_agent.storage.table import NewVersion, Snapshot

_REMEDY = "If that is right, as after a restore: driftline refresh {} --accept-restored"


def left(job: Job, base: Snapshot | None, version: int) -> dict[str, object]:
    """Return the note of the newest version after a refresh, for `checked`."""
    newest = base or _newest(job)
    return {HEAD: {"table": newest.table, "version": version}}


def newer(notes: dict[str, object], head: Snapshot) -> int | None:
    """Return the noted version of this table if it is newer than the head, else None."""
    noted = notes.get(HEAD)
    if not isinstance(noted, dict) or noted.get("table") != head.table:
        return None
    version = noted.get("version")
    return version if type(version) is int and version > head.version else None


def refuse(name: str, head: Snapshot, noted: int) -> None:
    """Raise WarehouseUnavailable: the head is older than what was published."""
    raise WarehouseUnavailable(
        f"The table's newest version is {head.version}, though version {noted} was published: its "
        "log entry was removed, or the table was restored from a backup.",
        where=name,
        remedy=_REMEDY.format(name),
    )


def checked(job: Job, head: Snapshot | None) -> Snapshot | None:
    """Return the head to go on from; publish missing versions again if that is accepted.

    Raises:
        WarehouseUnavailable: the head is older than what was published, or the log is gone, and
            that is not accepted.
        Locked: another agent published meanwhile.
    """
    notes = job.remembered()
    if head is None:
        _without_log(job, notes)
        return None
    noted = newer(notes, head)
    if noted is None:
        return head
    if not job.options.accept_restored:
        refuse(job.name, head, noted)
    job.staging.clear()  # compared with versions that are gone
    job.remember(**{CHECKED: None, row_security.META: None})
    return _numbered(job, head, upto=noted)


def _without_log(job: Job, notes: dict[str, object]) -> None:
    """Raise WarehouseUnavailable if the log is gone and data files are there.

    If they are gone too, the table was moved away and begins anew.
    """
    if not isinstance(notes.get(HEAD), dict):
        return
    if job.store.folders(job.name) and not job.options.accept_restored:
        raise WarehouseUnavailable(
            "The table's log is missing, although versions were published.",
            where=job.name,
            remedy="Restore the folder `_delta_log`, or move the table's folder away. For a new "
            "first load, after which readers of the change feed must begin again with a whole "
            f"version: driftline refresh {job.name} --accept-restored",
        )
    job.remember(**{HEAD: None})  # a failed attempt leaves data files without a log


def _numbered(job: Job, head: Snapshot, *, upto: int) -> Snapshot:
    """Publish the head's rows again as each version up to the one after `upto`; return the last."""
    newest = head
    for _ in range(head.version, upto + 1):
        record = replace(
            newest.record,
            published_at=utc_now(),
            changes=None,
            changes_files=(),
            rows_inserted=0,
            rows_updated=0,
            rows_deleted=0,
            repaired_files=0,
            repaired_rows=0,
            restored=head.version,
            report=None,
        )
        new = NewVersion(newest, newest.layout, added=(), removed=(), record=record)
        formats.commit(job.store, job.name, new)
        newest = _newest(job)
    return newest


def _newest(job: Job) -> Snapshot:
    """Return the version that was just committed. Raise WarehouseUnavailable: the table is gone."""
    newest = formats.head(job.store, job.name)
    if newest is None:
        raise WarehouseUnavailable(
            "The table is gone, although a version of it was just committed.",
            where=job.name,
            remedy="Find out what removes files of the warehouse, then run the refresh again.",
        )
    return newest

"""A table that is older than what was published: its newest log entry was removed, or all of it was
restored from a backup.

After each commit it is noted which version it made, of which table (the id in Delta's metadata). A
head that is older than the note is refused, because its readers may have seen what is gone. Told to
accept it, a refresh first gives out the numbers in between once more, and the next one, as versions
with the head's rows and without a change feed, and goes on behind them. So who followed the feed up
to a version that is gone is told to read a whole version, because one without a feed comes next;
nobody is given changes between versions that never followed each other. Where the log is gone as
well, or the table was moved away, a first load counts from 0 again, and nothing tells a number from
the one that was given out before: then readers of the feed must be told to begin again.

The note says nothing that is not so: it is written after the commit, so a crash leaves one that is
older than the head; a table that was moved away for a new first load has another id, as has one
that took another's name; a note that is lost accuses nobody.
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
    """Return the note that `checked` finds, of the newest version after a refresh."""
    newest = base or _newest(job)
    return {HEAD: {"table": newest.table, "version": version}}


def newer(notes: dict[str, object], head: Snapshot) -> int | None:
    """Return the version that was noted of this table; None: none that is newer than the head."""
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
    """Return the head to go on from, where it is what was left here, or may be something else.

    Raises:
        WarehouseUnavailable: it is older than what was published, and that is not accepted.
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
    """Refuse a table whose log is gone while data files of it are there; where these are gone as
    well, it was moved away, and begins anew."""
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
    job.remember(**{HEAD: None})  # what this attempt leaves behind has no log either


def _numbered(job: Job, head: Snapshot, *, upto: int) -> Snapshot:
    """Publish the head's rows as the versions that follow it, up to the one behind `upto`, which
    were given out before, but for the last; return the newest."""
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

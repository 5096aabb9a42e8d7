"""A table that is not as its last refresh left it: older, or written by another program.

It is older if it was restored from a backup, or its log was cut.

After each commit the version and the table's id are noted. A head that is older than the note is
refused, because readers may have seen the versions that are gone. If it is accepted
(`--accept-restored`), the refresh first publishes the head's rows again under each missing number
and the next one, without a change feed. So a reader who followed the feed to a missing version must
read a whole version, and nobody gets changes between versions that never followed each other. If
the log is gone too, or the table was moved away, a first load counts from 0: then readers of the
feed must be told to begin again.

Another program may have maintained the table: compacted it, removed old files, restored a version.
Then its files are written again with fingerprints made from their values, never from those that are
stored, because an UPDATE carries these along. If count and total are those that our last version
was proven to have, the rows are the same, and the next version has these files. Else the refresh is
refused. If it is accepted, the files of our last version are published again, and what is missing
of them is pulled as any damage is.

Rejected: to keep the other program's files as they are. Their bounds, key bytes, sizes and layout
would have to be believed, or read by every step.

The note never accuses wrongly: it is written after the commit, so a crash leaves a note older than
the head, and a new table of the same name has another id. While numbers are given out again it says
so, and what was said of the versions that had them is gone before: a crash between two of them
leaves a head that is refused until that is accepted again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from driftline.errors import Locked, MalformedMessage, ValueDoesNotFit, WarehouseUnavailable
from driftline.rows.digests import Digest, Salt

from warehouse_agent.columns.layout import Layout
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.notes import HeadNote
from warehouse_agent.refresh.job import Job
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage import formats, not_null
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import NewVersion, OtherVersion, Snapshot
from warehouse_agent.tasks import digests, file_damage
from warehouse_agent.tasks.proof import VersionTotal, fingerprinted, read_back
from warehouse_agent.tasks.rewrites.restatement import restate
from warehouse_agent.tasks.steps import Steps

_log = logging.getLogger("driftline")
_REMEDY = "If that is right, as after a restore: driftline refresh {} --accept-restored"


def newest_head(job: Job, base: Snapshot | None, version: int) -> HeadNote:
    """Return the note of the newest version after a refresh, for `checked`."""
    newest = base or _newest(job)
    return HeadNote(newest.table, version)


def refuse(name: str, head: Snapshot, noted: int) -> None:
    """Raise WarehouseUnavailable: the head is older than what was published."""
    if noted == head.version:
        raise WarehouseUnavailable(
            f"The rows of an older version were published again as version {noted}, and the next"
            " one is missing: readers of the change feed would be led on from rows that are gone.",
            where=name,
            remedy=_REMEDY.format(name),
        )
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
    if head is None:
        _without_log(job)
        return None
    noted = job.notes.newer(head)
    if noted is not None and not job.options.accept_restored:
        refuse(job.name, head, noted)
    if head.other is not None:
        head = _taken_up(job, head, head.other)
    if noted is None:
        return head
    job.staging.clear()  # compared with versions that are gone
    again = replace(job.notes.unchecked(), head=HeadNote(head.table, noted, is_renumbered=True))
    job.notes = job.notes.unchecked() if noted < head.version else again
    job.write_notes()
    return head if noted < head.version else _numbered(job, head, upto=noted)


def _without_log(job: Job) -> None:
    """Raise WarehouseUnavailable if the log is gone and data files are there.

    If they are gone too, the table was moved away and begins anew.
    """
    if not job.notes.has_versions:
        return
    is_known = job.notes.head is not None
    if is_known and job.store.walk(job.name) and not job.options.accept_restored:
        raise WarehouseUnavailable(
            "The table's log is missing, although versions were published.",
            where=job.name,
            remedy="Restore the folder `_delta_log`, or move the table's folder away. For a new "
            "first load, after which readers of the change feed must begin again with a whole "
            f"version: driftline refresh {job.name} --accept-restored",
        )
    # Before the first load: its numbers are those of versions that are gone. And if it fails, it
    # leaves data files without a log.
    job.notes = job.notes.without_versions()
    job.write_notes()


def same_rows(steps: Steps, store: Store, name: str, head: Snapshot) -> str:
    """Return in words what another program wrote after our newest version, if its rows are the
    same; empty: nothing. Rows are fingerprinted from their values; nothing is written.

    Raises:
        WarehouseUnavailable: it has other rows, or they cannot be read.
    """
    if (other := head.other) is None:
        return ""
    key = KeyFile(store.uri(PRIVATE, "keys", f"{name}.key"))
    formats.refuse_unreadable(name, other)
    why = other.differs or _read(
        steps,
        store,
        name,
        head,
        other,
        lambda files, salt: fingerprinted(steps, files, head.layout, key, salt),
    )
    if why is not None:
        raise _differ(name, head, other, why)
    return f"; {other.text}, with the same rows"


def _differ(name: str, head: Snapshot, other: OtherVersion, why: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        f"{formats.begun(other.text)}, and its rows are not those of version {head.version}, the "
        f"last that Driftline published: {why}.",
        where=name,
        remedy=f"To go on from version {head.version} without what the other program wrote: "
        f"driftline refresh {name} --accept-restored",
    )


def _taken_up(job: Job, head: Snapshot, other: OtherVersion) -> Snapshot:
    """Return the version to go on from after another program wrote to the table.

    Raises:
        WarehouseUnavailable: its rows are not those of our last version, and that is not accepted.
        Locked: another agent published meanwhile.
    """
    formats.refuse_unreadable(job.name, other)
    adopted = _adopted(job, head, other)
    if isinstance(adopted, Snapshot):
        return adopted
    if not job.options.accept_restored:
        raise _differ(job.name, head, other, adopted)
    job.staging.clear()
    job.notes = job.notes.unchecked()
    job.write_notes()
    formats.put_back(job.store, job.name, head)
    WarehouseFailpoint.VERSION_REPUBLISHED.reach()
    return _newest(job)


def _adopted(job: Job, head: Snapshot, other: OtherVersion) -> Snapshot | str:
    """Publish another program's version as ours if it has the rows of our last one.

    Returns:
        The new version; or why the rows are others.
    """
    if other.differs is not None:
        return other.differs
    folder = f"data-{uuid.uuid4().hex[:12]}-adopted"  # none of the attempt's, which are removed
    place, written = DataFolder(job.store, job.name, folder), list[DataFile]()

    def write(files: Sequence[DataFile], salt: Salt) -> Digest:
        layout = head.layout
        written.extend(restate(job.steps, place, files, layout, layout, job.key_file))
        return read_back(job.steps, written, head.layout, job.key_file, salt, name=job.name)

    if (why := _read(job.steps, job.store, job.name, head, other, write)) is not None:
        job.store.remove(job.name, folder)
        return why
    record = formats.same_rows(head.record, adopted=head.version)
    base = replace(head, version=other.version, files=other.files, pin=other.pin, other=None)
    theirs = _theirs(head, other)
    formats.commit(job.store, job.name, NewVersion(base, head.layout, written, theirs, record))
    WarehouseFailpoint.VERSION_REPUBLISHED.reach()
    newest = _newest(job)
    job.notes = job.notes.moved(head, newest)
    job.write_notes()
    return newest


def is_declared_right(base: Snapshot, layout: Layout) -> bool:
    """Return True if a version declares what `declared_anew` would."""
    return not base.declares_too_much and layout.not_null == base.layout.not_null


def declared_anew(job: Job, base: Snapshot, layout: Layout) -> int:
    """Publish a version that was found equal once more, without a file, if it declares too much, as
    older releases did, or if the source says of other columns that they are NOT NULL; return the
    number of the newest version.

    A version that is published for its rows declares what it should anyway. It is the comparison
    that counts: what cannot be committed now is left to a later refresh.

    Args:
        layout: of the relation as it is known now.
    """
    if is_declared_right(base, layout):
        return base.version
    record = formats.same_rows(base.record, adopted=base.version)
    new = NewVersion(base, layout, added=(), removed=(), record=record)
    is_same = not_null.checked(new).not_null == base.layout.not_null
    if is_same and not base.declares_too_much:
        return base.version
    try:
        formats.commit(job.store, job.name, new)
    except (Locked, WarehouseUnavailable):
        _log.debug("the columns of %s stay declared as they are", job.name, exc_info=True)
        return base.version
    WarehouseFailpoint.VERSION_REPUBLISHED.reach()
    newest = _newest(job)
    job.notes = job.notes.moved(base, newest)
    job.write_notes()
    return newest.version


def _theirs(head: Snapshot, other: OtherVersion) -> list[DataFile]:
    ours = {f.path for f in head.files}
    return [f for f in other.files if f.path not in ours]


def _read(
    steps: Steps,
    store: Store,
    name: str,
    head: Snapshot,
    other: OtherVersion,
    digest_of: Callable[[Sequence[DataFile], Salt], Digest],
) -> str | None:
    """Return why another program's version has other rows than our last one was proven to have;
    None: it has the same.

    Args:
        digest_of: returns the digest of the rows of the other program's files, from their values.
    """
    ours = {f.path for f in head.files}
    kept, theirs = [f for f in other.files if f.path in ours], _theirs(head, other)
    if not theirs and len(kept) == len(ours):
        return None  # of these files we know

    def stored(files: Sequence[DataFile], salt: Salt) -> Digest:
        return digests.total(steps, files, head.layout, salt) if files else Digest()

    known = VersionTotal.from_json(head.record.total)
    try:
        if known is None:  # the release of the golden warehouse noted none
            if file_damage.absent(store, name, head.files):
                return "an older release published it, and its files are gone: nobody can compare"
            salt = Salt.fresh()
            known = VersionTotal(salt, stored(head.files, salt))
        digest = stored(kept, known.salt)
        if theirs:
            digest += digest_of(theirs, known.salt)
    except (WarehouseUnavailable, ValueDoesNotFit, MalformedMessage) as error:
        return f"they cannot be read ({error.message.rstrip('.')})"
    if digest == known.digest:
        return None
    if digest.count == known.digest.count:
        return f"of as many rows, {digest.count:,}, some have other values"
    return f"there are {counted(digest.count, 'row')} instead of {known.digest.count:,}"


def _numbered(job: Job, head: Snapshot, *, upto: int) -> Snapshot:
    """Publish the head's rows again as each version up to the one after `upto`; return the last."""
    newest = head
    for _ in range(head.version, upto + 1):
        record = formats.same_rows(newest.record, restored=head.version)
        new = NewVersion(newest, newest.layout, added=(), removed=(), record=record)
        formats.commit(job.store, job.name, new)
        WarehouseFailpoint.VERSION_REPUBLISHED.reach()
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

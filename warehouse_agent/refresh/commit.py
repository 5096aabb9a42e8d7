"""Publish what was proven: one commit of the table's format, then the notes for the next refresh.

The commit is the only step that readers see. It alone clears what was staged and writes that the
version was compared; notes may be lost, so a failure to write them after a commit is no failure.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any

from driftline.errors import WarehouseUnavailable

from warehouse_agent.history import record
from warehouse_agent.history.record import Checked, note_checked
from warehouse_agent.methods.registry import modelled
from warehouse_agent.planning import prices
from warehouse_agent.refresh import repair, restored, schema_change, withheld
from warehouse_agent.refresh.finish import Proven, ProvenEqual, ProvenVersion
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared
from warehouse_agent.report import Published, fingerprint_kind, miss_probability, utc_now
from warehouse_agent.storage import formats, row_security
from warehouse_agent.storage.table import NewVersion, VersionRecord
from warehouse_agent.tasks.difference import Outcome

ROWS_TIMED = 10_000  # fewer rows say how long a round trip takes, and not how fast they come


def commit(job: Job, proven: Proven) -> Published:
    """Publish what was proven, clear what was staged and note what the next refresh uses.

    Raises:
        Locked: another agent committed since the base was read.
        WarehouseUnavailable: the commit, or the notes of a version found equal, cannot be written.
    """
    match proven:
        case ProvenEqual():
            return _confirm(job, proven)
        case ProvenVersion():
            with job.phase("publish"):
                return _publish(job, proven)


def _confirm(job: Job, proven: ProvenEqual) -> Published:
    """Note that the published version is still equal to the source."""
    p, out, version = proven.ours, proven.found, proven.base.version
    job.staging.clear()
    job.remember(**_notes(job, p, out, version))
    return Published(
        version=version,
        rows=out.theirs.count,
        proof=_proof(p),
        checked_at=out.checked_at,
        fingerprint=fingerprint_kind(p.layout.recipe),
        miss_probability=_missed(p, 0),
        modelled=_modelled(p, out, 0),
    )


def _publish(job: Job, proven: ProvenVersion) -> Published:
    """Commit the files as the next version; then tidy up and note what it took."""
    p, out, applied, counts = proven.ours, proven.found, proven.applied, proven.changes.counts
    inserted = out.theirs.count if p.base is None else counts.get("insert", 0)
    updated, deleted = counts.get("update_after", 0), counts.get("delete", 0)
    changed, shipped = inserted + updated + deleted, sum(f.rows for f in applied.shipped)
    is_other = p.base is not None and schema_change.differs(p.layout, p.base.layout)
    lost = p.base.lost if p.base else ()
    done = Published(
        version=p.base.version + 1 if p.base else 0,
        rows=out.theirs.count,
        proof=_proof(p),
        checked_at=out.checked_at,
        fingerprint=fingerprint_kind(p.layout.recipe),
        miss_probability=_missed(p, shipped if is_other else changed),
        # Across a change of columns the number of changed rows is not known.
        modelled=None if is_other else _modelled(p, out, changed),
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        schema_changed=is_other,
        bytes_rewritten=sum(f.size for f in applied.gone if f not in lost),
    )
    said = _record(job, proven, done)
    new = NewVersion(p.base, p.layout, applied.added, applied.gone, said)
    formats.commit(job.store, job.name, new)
    with contextlib.suppress(WarehouseUnavailable):  # it is published; these may be lost
        job.staging.clear()
        job.tidy(applied.added)
        learnt = prices.learnt(
            job.remembered(),
            frame_bytes=out.frame_bytes,
            shipped=shipped,
            changed=changed,
            is_copy=out.is_copy,
            level=p.known.line.level(p.ours.compared.count),
        )
        job.remember(**learnt, **_notes(job, p, out, done.version))
    return done


def _record(job: Job, proven: ProvenVersion, done: Published) -> VersionRecord:
    """Return what the commit says of its version."""
    p, out, checked = proven.ours, proven.found, _checked(job, proven.ours, proven.found)
    return VersionRecord(
        as_of=checked.as_of,
        checked_at=checked.checked_at,
        consistency=out.consistency,
        proof=done.proof,
        fingerprint=done.fingerprint,
        vouched=out.vouched,
        rows=done.rows,
        published_at=utc_now(),
        changes=proven.changes.folder,
        changes_files=tuple(proven.changes.files),
        rows_inserted=done.inserted,
        rows_updated=done.updated,
        rows_deleted=done.deleted,
        repaired_files=len(p.base.lost) if p.base else 0,
        repaired_rows=p.base.rows_lost if p.base else 0,
        method=out.method.value,
        clock=p.stamp.clock_after,
        row_security=None if proven.security is None else proven.security.to_json(),
    )


def _proof(p: Prepared) -> str:
    """Return what was proven equal: all rows (`total`), or the compared ones (`part`)."""
    return "part" if p.is_part else "total"


def _missed(p: Prepared, changed: int) -> float | None:
    """Return the probability that a change was missed; None where not all rows were compared."""
    return None if p.is_part else miss_probability(changed, p.layout.recipe)


def _modelled(p: Prepared, out: Outcome, changed: int) -> dict[str, Any] | None:
    """Return what the model of costs says of `changed` rows, for comparison with what it took."""
    differing = changed + (p.base.rows_lost if p.base else 0)
    found = modelled(p.known, p.expected, differing, out.method, out.theirs.count)
    return None if found is None else asdict(found)


def _notes(job: Job, p: Prepared, out: Outcome, version: int) -> dict[str, object]:
    """Return the notes after a refresh: when all of this version was compared the last time, and
    how fast the source read; after a partial refresh, whose turn is next."""
    noted = note_checked(version, _checked(job, p, out))
    noted |= restored.left(job, p.base, version) | repair.left(job, p.base)
    noted |= row_security.note(out.row_security, version)
    return noted | p.ours.notes() | ({} if p.is_part else _speed(job, p, out))


def _checked(job: Job, p: Prepared, out: Outcome) -> Checked:
    """Return when all rows of what is published now were compared the last time.

    A partial refresh says nothing of all rows. Where the fragment does not accept the consistency
    of this exchange, the earlier instant stays and only the time of the check is new.
    """
    now = Checked(out.as_of, out.checked_at, out.consistency)
    if p.base is None or (not p.is_part and withheld.accepts(job, out)):
        return now
    before = record.checked(job.remembered(), p.base)
    return before if p.is_part else replace(before, checked_at=now.checked_at)


def _speed(job: Job, p: Prepared, out: Outcome) -> dict[str, float]:
    """Return how fast the source read, in rows/s; empty where one attempt does not tell.

    At least half of the time is taken to be spent on reading, because rows are on the line while
    others are read. Over several attempts, seconds and bytes add up in the report and rows do not.
    """
    report = job.report
    took = report.seconds.get("exchange", 0.0)
    if out.rows_read <= ROWS_TIMED or not took or report.attempts > 1:
        return {}
    waited = p.known.line.seconds(report.bytes_sent + report.bytes_received, out.round_trips, 0)
    return {"rows_per_s": out.rows_read / max(took - waited, took / 2)}

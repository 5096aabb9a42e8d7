"""Publish what was proven: one commit of the table's format, then the notes for the next refresh.

The commit is the only step that readers see. It alone clears what was staged and writes that the
version was compared; notes may be lost, so a failure to write them after a commit is no failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, replace

from driftline.errors import WarehouseUnavailable

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Proof
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.notes import (
    ComparisonNote,
    MarkNote,
    Notes,
    UncomparedNote,
    VersionNote,
    weaker,
)
from warehouse_agent.methods.registry import modelled
from warehouse_agent.planning import prices
from warehouse_agent.planning.plan_inputs import ChangeKinds
from warehouse_agent.refresh import derivation, marker_audit, schema_change
from warehouse_agent.refresh.finish import (
    Proven,
    ProvenEqual,
    ProvenVersion,
    accepts,
    proof_of,
)
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import repair, restored
from warehouse_agent.refresh.whole import ComparisonResult
from warehouse_agent.report import PublishedVersion, fingerprint_kind, miss_probability, utc_now
from warehouse_agent.storage.table import NewVersion, Snapshot, VersionRecord
from warehouse_agent.tasks.proof import VersionTotal


def commit(
    job: Job,
    proven: Proven,
    *,
    beside: Mapping[str, int] | None = None,
    declaring: bool = True,
) -> PublishedVersion:
    """Publish what was proven, clear what was staged and note what the next refresh uses.

    Args:
        job: the fragment's, in this attempt.
        proven: what is published.
        beside: versions, by name, that are committed with it from the same snapshot; None: it is
            not held for views.
        declaring: a version that was found equal may be published once more to declare other
            columns; False: views stay that are made of it.

    Raises:
        Locked: another agent committed since the base was read.
        WarehouseUnavailable: the commit, or the notes of a version found equal, cannot be written.
    """
    match proven:
        case ProvenEqual():
            version = _confirm(job, proven)
            if declaring:
                layout = proven.compared.prepared.layout
                version = restored.declared_anew(job, proven.base, layout)
            return _result(job, proven.compared, version, 0)
        case ProvenVersion():
            with job.phase("publish"):
                return _publish(job, proven, beside or {})


def _confirm(job: Job, proven: ProvenEqual) -> int:
    """Note that the published version is still equal to the source; return its number."""
    version = proven.base.version
    if job.store.is_local or not proven.compared.is_unstaged:  # a disk may have an empty folder
        job.staging.clear()
    job.tidy(())  # of staged rows that were taken up
    job.notes = _notes(job, proven.compared, version, proven.base.record, is_same=True)
    job.write_notes()
    return version


def _publish(job: Job, proven: ProvenVersion, beside: Mapping[str, int]) -> PublishedVersion:
    """Commit the files as the next version; then tidy up and note what it took."""
    p, out, applied = proven.compared.prepared, proven.compared.found, proven.applied
    counts, shipped = proven.changes.counts, sum(f.rows for f in applied.shipped)
    inserted = out.theirs.count if p.base is None else counts.get("insert", 0)
    updated, deleted = counts.get("update_after", 0), counts.get("delete", 0)
    # Across a change of columns the number of changed rows is not known.
    is_other = p.base is not None and schema_change.differs(p.layout, p.base.layout)
    changed = shipped if is_other else inserted + updated + deleted
    lost = p.base.lost if p.base else ()
    number = p.base.version + 1 if p.base else 0
    done = _result(job, proven.compared, number, changed, deleted)
    done = replace(
        done,
        modelled=None if is_other else done.modelled,
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        schema_changed=is_other,
        schema_changes=_schema_changes(p.base, p.layout),
        changed=None if (places := proven.changes.places) is None else places.to_json(),
        bytes_rewritten=sum(f.size for f in applied.gone if f not in lost),
    )
    record = replace(_record(job, proven, done), beside=dict(beside) or None)
    new = NewVersion(p.base, p.layout, applied.added, applied.gone, record)
    WarehouseFailpoint.COMMITTING.reach()
    job.commit(new)
    WarehouseFailpoint.COMMITTED.reach()
    with contextlib.suppress(WarehouseUnavailable):  # it is published; these may be lost
        job.staging.clear()
        WarehouseFailpoint.STAGING_CLEARED.reach()
        job.tidy([file.path for file in applied.added])
        learnt = prices.new_notes(
            job.notes.prices,
            frame_bytes=out.frame_bytes,
            shipped=shipped,
            changed=changed,
            is_copy=out.is_copy,
            level=p.known.level(p.compared.count, at_once=p.is_copied_at_once),
        )
        noted = _notes(job, proven.compared, done.version, record)
        job.notes = replace(noted, prices=learnt)
        job.write_notes()
        WarehouseFailpoint.NOTES_WRITTEN.reach()
    return done


def _schema_changes(base: Snapshot | None, now: Layout) -> list[str]:
    """Return how columns differ from those that were published, a phrase each."""
    return [] if base is None else schema_change.phrases(base.layout.recipe, now.recipe)


def _result(
    job: Job, compared: ComparisonResult, version: int, changed: int, deleted: int = 0
) -> PublishedVersion:
    """Return the result of a refresh after which readers see `version`; `changed` rows, with those
    that were `deleted`."""
    p, out, recipe = compared.prepared, compared.found, compared.prepared.layout.recipe
    differing = changed + (p.base.rows_lost if p.base else 0)
    is_total = proof_of(job, p, out) is Proof.TOTAL
    marking = marker_audit.with_changes(compared.marking, out, changed, deleted)
    inserted = min(max(out.theirs.count - p.total.count + deleted, 0), differing - deleted)
    kinds = ChangeKinds(*(count / max(differing, 1) for count in (inserted, deleted)))
    model = modelled(p.known, p.expected, differing, out.method, out.theirs.count, kinds=kinds)
    return PublishedVersion(
        version=version,
        rows=out.theirs.count,
        proof=proof_of(job, p, out).value,
        checked_at=_claimed_at(job, compared) or out.checked_at,
        refreshed_at=out.checked_at,
        fingerprint=fingerprint_kind(recipe),
        miss_probability=miss_probability(changed, recipe) if is_total else None,
        modelled=None if model is None else asdict(model),
        audit=None if marking is None or marking.audit is None else marking.audit.to_json(),
    )


def _record(job: Job, proven: ProvenVersion, done: PublishedVersion) -> VersionRecord:
    """Return the record that the commit keeps of its version."""
    p, out = proven.compared.prepared, proven.compared.found
    last = _checked(job, proven.compared)
    changed = done.inserted + done.updated + done.deleted
    marking = marker_audit.with_changes(proven.compared.marking, out, changed, done.deleted)
    return VersionRecord(
        as_of=last.as_of,
        checked_at=last.checked_at,
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
        report=asdict(job.report.with_result(done)),
        marking=None if marking is None else marking.to_json(),
        total=VersionTotal(p.salt, out.theirs).to_json(),
    )


def _notes(
    job: Job,
    compared: ComparisonResult,
    version: int,
    record: VersionRecord,
    *,
    is_same: bool = False,
) -> Notes:
    """Return the notes after a refresh: the last comparison of all rows of this version, damaged
    files, row security, wishes, what a part left and where the next one goes on, the mark, and how
    fast the source read."""
    p, out, rate, said = compared.prepared, compared.found, compared.rows_per_s, job.report
    notes, part, mark, security = job.notes, None, job.notes.mark, job.notes.row_security
    if p.part is not None:
        left = UncomparedNote(p.part.rest.count, said.updates_left, said.allowed)
        part = VersionNote(version, left)
    changed, deleted = (0, 0) if is_same else (record.rows_changed, record.rows_deleted)
    marking = marker_audit.with_changes(compared.marking, out, changed, deleted)
    if marking is not None:
        mark = MarkNote(version, record.published_at, marking)
    if out.row_security is not None:
        security = VersionNote(version, out.row_security)
    rows_per_s, keys_per_s = notes.rows_per_s, notes.keys_per_s
    if out.is_claimed:
        rate = None  # neither all rows nor all keys were read
    if rate is not None and out.by_marker:
        keys_per_s = rate
    elif rate is not None:
        rows_per_s = rate
    return replace(
        notes,
        checked=VersionNote(version, _checked(job, compared)),
        head=restored.newest_head(job, p.base, version),
        damaged=repair.damage_left(job, p.base),
        part=part,
        wish=derivation.wish(job, p.layout),
        mark=mark,
        row_security=security,
        rows_per_s=rows_per_s,
        keys_per_s=keys_per_s,
        turn=notes.turn.after(p.turn),
    )


def _checked(job: Job, compared: ComparisonResult) -> ComparisonNote:
    """Return the last comparison of all rows of what is published now.

    A partial refresh does not compare all rows. Where the fragment does not accept the consistency
    of this exchange, the earlier instant stays: only the time of the check is new, and its proof if
    that is the weaker one. Claims compare nothing: they never move the time of the check.
    """
    p, out = compared.prepared, compared.found
    proof = proof_of(job, p, out).value
    now = ComparisonNote(out.as_of, out.checked_at, out.consistency, out.activity, proof)
    if (checked_at := _claimed_at(job, compared)) is not None:
        now = replace(now, checked_at=checked_at)
    if p.base is None or (p.part is None and accepts(job, out)):
        return now
    before = job.notes.comparison(p.base)
    if p.part is not None:
        return before
    return replace(before, checked_at=now.checked_at, proof=weaker(before.proof, proof))


def _claimed_at(job: Job, compared: ComparisonResult) -> str | None:
    """Return when rows were compared last before a refresh by claims; None: it is none."""
    base = compared.prepared.base
    is_claimed = base is not None and compared.found.is_claimed
    return job.notes.comparison(base).checked_at if base is not None and is_claimed else None

"""What an exchange found becomes a version: apply, prove, publish.

Files are written, read back and proven equal to the source, and only then named by a commit.
Whatever fails before that leaves the last version as it is, and what was staged for the next
attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from driftline.digests import Digest
from driftline.errors import (
    DriftlineError,
    DuplicateKey,
    MalformedMessage,
    ProofFailed,
    TableShrank,
    ValueDoesNotFit,
    WarehouseUnavailable,
)

from warehouse_agent.history import record
from warehouse_agent.history.record import Checked, note_checked
from warehouse_agent.planning import choice, prices, proof_diagnosis
from warehouse_agent.planning.candidates import modelled
from warehouse_agent.refresh import repair, restored, schema_change, withheld
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared
from warehouse_agent.report import Report, utc_now
from warehouse_agent.storage import formats, row_security
from warehouse_agent.storage.data_files import DataFile, rows_of
from warehouse_agent.storage.table import Snapshot, VersionRecord
from warehouse_agent.tasks import apply, change_feed, digests, proof, row_statistics, staging
from warehouse_agent.tasks.change_feed import Feed
from warehouse_agent.tasks.difference import (
    BelowKeys,
    Equal,
    Everything,
    ListedRows,
    Outcome,
    Zones,
)
from warehouse_agent.tasks.key_lookup import fits
from warehouse_agent.tasks.rewrite import ByHash, ByK, InTiles, Removal, files_holding, rewrite

CHANGES_PER_FILE = 64  # from here on they are taken to touch every file that they may touch
ROWS_TIMED = 10_000  # fewer rows say how long a round trip takes, and not how fast they come


def settle(job: Job, p: Prepared, out: Outcome, staged: list[str]) -> None:
    """Apply, prove and publish what the comparison found."""
    try:
        _settle(job, p, out, staged)
    except (MalformedMessage, ValueDoesNotFit, DuplicateKey, TableShrank):
        if p.known.tiled is not None:  # finished tiles would not be compared again
            job.staging.clear()
        raise


def _settle(job: Job, p: Prepared, out: Outcome, staged: list[str]) -> None:
    report = job.report
    before = withheld.other_policies(job, p, out)
    is_same = before is None or out.row_security in (None, before)
    if out.is_equal and is_same and p.base is not None and _says_all(p, p.base):
        job.staging.clear()
        # Another agent may have published what an earlier attempt of this one was to.
        report.rows_inserted = report.rows_updated = report.rows_deleted = 0
        report.schema_changed = False
        report.checked_at, report.proof = out.checked_at, _proof(p)
        report.rows_total = out.theirs.count
        _missed(p, report, 0)
        _model(job, p, out)
        job.remember(**_notes(job, p, out, p.base.version))
        return
    withheld.shrunk(job, p, out)
    withheld.inconsistent(job, out)
    with job.phase("apply"):
        applied = _apply(job, p, out, staged)
    # Jobs that do not need each other run side by side: each alone leaves cores idle for a while.
    with ThreadPoolExecutor(1) as beside:
        changes = beside.submit(_changes, job, p, applied)
        with job.phase("prove"):
            _prove(job, p, out, applied)
        with job.phase("publish"):
            _publish(job, p, out, applied, changes.result())


def _says_all(p: Prepared, base: Snapshot) -> bool:
    """Whether the published version is the working copy, and claims no less than is proven now."""
    is_same = p.files == base.files and not schema_change.differs(p.layout, base.layout)
    return is_same and (p.is_part or base.record.proof != "part")


def _proof(p: Prepared) -> str:
    """Of what is published: equal in all, or where it was compared."""
    return "part" if p.is_part else "total"


def _missed(p: Prepared, report: Report, changed: int) -> None:
    """Note what stood for a row and the chance of a miss, unknown where not all was compared."""
    report.compared_by(p.layout.recipe, rows_changed=changed)
    if p.is_part:
        report.miss_probability = None


def _model(job: Job, p: Prepared, out: Outcome) -> None:
    """Note what the model of costs says of what was found."""
    if job.report.schema_changed:  # it is not known how many rows changed
        return
    found = modelled(
        p.known,
        p.expected,
        job.report.rows_changed + job.report.repaired_rows,
        out.method,
        out.theirs.count,
    )
    job.report.modelled = None if found is None else asdict(found)


def _notes(job: Job, p: Prepared, out: Outcome, version: int) -> dict[str, object]:
    """When all of this version was compared the last time, and how fast; after a part, whose turn
    is next."""
    noted = note_checked(version, _checked(job, p, out))
    noted |= restored.left(job, p.base, version) | repair.left(job, p.base)
    noted |= row_security.note(out.row_security, version)
    return noted | p.ours.notes() | ({} if p.is_part else _speed(job, p, out))


def _checked(job: Job, p: Prepared, out: Outcome) -> Checked:
    """When all of what is published now was compared the last time. What of it this exchange says:
    after a part nothing, nor as of when where the fragment does not accept its consistency."""
    now = Checked(out.as_of, out.checked_at, out.consistency)
    if p.base is None or (not p.is_part and withheld.accepts(job, out)):
        return now
    before = record.checked(job.remembered(), p.base)
    return before if p.is_part else replace(before, checked_at=now.checked_at)


def _speed(job: Job, p: Prepared, out: Outcome) -> dict[str, float]:
    """How fast the source read, which half of the time at least is taken to be spent on: rows are
    on the line while others are read. After further attempts, whose times and bytes add up in the
    report while rows do not, nothing is known of it."""
    report = job.report
    took = report.seconds.get("exchange", 0.0)
    if out.rows_read <= ROWS_TIMED or not took or report.attempts > 1:
        return {}
    waited = p.known.line.seconds(report.bytes_sent + report.bytes_received, out.round_trips, 0)
    return {"rows_per_s": out.rows_read / max(took - waited, took / 2)}


def _apply(job: Job, p: Prepared, out: Outcome, staged: list[str]) -> apply.Applied:
    base = p.base.files if p.base else ()
    updated = _updated(job, p, out)
    if isinstance(out.difference, Everything):
        return apply.Applied(_shipped(job, p, staged, p.files, updated), (), (), base)
    removal, hit = _removal(job, p, out)
    touched = apply.touched_files(p.files, hit)
    rewritten: list[DataFile] = []
    before: list[DataFile] = []
    if touched:
        rewritten, before = rewrite(
            job.spark,
            job.store,
            job.name,
            job.folder("rewritten"),
            touched,
            p.layout,
            removal=removal,
        )
    shipped = _shipped(job, p, staged, before, updated)
    published, changed = set(base), set(touched)
    left = [f for f in p.files if f not in changed]
    kept = tuple(f for f in left if f in published)
    carried = tuple(f for f in left if f not in published)
    stay = set(kept)
    return apply.Applied(
        shipped,
        (*rewritten, *carried),
        kept,
        tuple(f for f in base if f not in stay),
        tuple(before) if p.base is not None and p.files == p.base.sound else None,
    )


def _updated(job: Job, p: Prepared, out: Outcome) -> int | None:
    """Return how many rows are updated, about and at most; None: nothing is known of it."""
    match out.difference:
        case Equal():
            return 0
        case Everything():
            is_asked = job.fragment.method is choice.Method.FULL  # whatever changed
            return None if is_asked else sum(f.rows for f in p.files)
        case ListedRows(rows):
            return len(rows.positions)
        case Zones(emptied, listed):
            return len(listed.positions) + emptied.rows
        case BelowKeys(ks, embedding):
            new = max(out.theirs.count - sum(f.rows for f in p.files), 0)
            is_whole = embedding.base is None  # else new rows may lie outside
            return len(ks) - (new if is_whole else 0)


def _removal(job: Job, p: Prepared, out: Outcome) -> tuple[Removal | None, list[DataFile]]:
    """Return the rows to remove, and the files that hold them, and perhaps others."""
    match out.difference:
        case Equal() | Everything():
            return None, []
        case BelowKeys(ks, embedding) as difference:
            if not len(ks):
                return None, []
            below, files = ByK(ks, embedding, p.salt), apply.within_bounds(p.files, difference)
            if len(ks) < CHANGES_PER_FILE * len(files):
                files = files_holding(job.spark, files, p.layout, below)
            return below, files
        case ListedRows(rows):
            numbers = set(rows.file.tolist())
            return ByHash.of(rows, p.salt), [f for i, f in enumerate(p.files) if i in numbers]
        case Zones(emptied, listed):
            removal, numbers = (
                InTiles(emptied, ByHash.of(listed, p.salt)),
                set(listed.file.tolist()),
            )
            near = [
                f
                for i, f in enumerate(p.files)
                if i not in numbers and (f.bounds is None or emptied.meets(*f.bounds))
            ]
            hit = set(files_holding(job.spark, near, p.layout, removal))
            return removal, [f for i, f in enumerate(p.files) if i in numbers or f in hit]


def _shipped(
    job: Job, p: Prepared, staged: list[str], before: Sequence[DataFile], updated: int | None
) -> tuple[DataFile, ...]:
    """What came, decoded and verified, as data files with the statistics of the rows before."""
    if fits(before):
        return tuple(job.ship("shipped", staged, p.layout, p.stamp, before, updated))
    rows = staging.decoded(job.spark, staged, p.layout, job.key_file)
    known = rows_of(job.spark, p.layout, [f.uri for f in before])
    counted = row_statistics.joined(rows, known, p.layout, p.stamp, updated=updated)
    return tuple(job.write("shipped", counted, p.layout))


def _prove(job: Job, p: Prepared, out: Outcome, applied: apply.Applied) -> None:
    if not out.vouched:
        rows = rows_of(job.spark, p.layout, [f.uri for f in (*applied.added, *applied.kept)])
        proof.refuse_duplicates(rows, p.layout, name=job.name, exact=out.consistency == "exact")
    try:
        proof.prove(
            job.spark,
            p.layout,
            job.key_file,
            p.salt,
            added=applied.added,
            kept=applied.kept,
            turn=p.base.version if p.base else 0,
            theirs=out.theirs,
            name=job.name,
        )
    except ProofFailed as error:
        is_right_so_far = False
        try:
            with contextlib.suppress(DriftlineError):
                parts = _parts(job, p, out, applied)
                error.details.update(
                    {"cause": proof_diagnosis.broken(parts), "rows": parts.counted()}
                )
                # By a sketch: the finished tiles of a pass would not be compared again.
                is_right_so_far = isinstance(
                    out.difference, BelowKeys
                ) and proof_diagnosis.is_missed_update(parts)
        finally:
            if not is_right_so_far:
                job.staging.clear()  # what led here must not be built on
        raise
    job.report.proof = _proof(p)


def _parts(job: Job, p: Prepared, out: Outcome, applied: apply.Applied) -> proof_diagnosis.Parts:
    def digest(files: Sequence[DataFile]) -> Digest:
        return digests.total(job.spark, files, p.layout, p.salt) if files else Digest()

    before = applied.before
    return proof_diagnosis.Parts(
        theirs=out.theirs,
        ours=p.ours.compared + p.ours.rest,
        came=out.came,
        shipped=digest(applied.shipped),
        stayed=digest((*applied.rewritten, *applied.kept)),
        gone=None if before is None else digest(before),
    )


def _publish(job: Job, p: Prepared, out: Outcome, applied: apply.Applied, changes: Feed) -> None:
    report, checked = job.report, _checked(job, p, out)
    version = p.base.version + 1 if p.base else 0
    report.rows_inserted = out.theirs.count if p.base is None else changes.counts.get("insert", 0)
    report.rows_updated = changes.counts.get("update_after", 0)
    report.rows_deleted = changes.counts.get("delete", 0)
    report.schema_changed = p.base is not None and schema_change.differs(p.layout, p.base.layout)
    shipped = sum(f.rows for f in applied.shipped)
    _missed(p, report, shipped if report.schema_changed else report.rows_changed)
    security = out.row_security or withheld.policies(job, p)
    said = VersionRecord(
        as_of=checked.as_of,
        checked_at=checked.checked_at,
        consistency=out.consistency,
        proof=_proof(p),
        fingerprint=report.fingerprint,
        vouched=out.vouched,
        rows=out.theirs.count,
        published_at=utc_now(),
        changes=changes.folder,
        changes_files=tuple(changes.files),
        rows_inserted=report.rows_inserted,
        rows_updated=report.rows_updated,
        rows_deleted=report.rows_deleted,
        repaired_files=report.repaired_files,
        repaired_rows=report.repaired_rows,
        method=out.method.value,
        clock=p.stamp.clock_after,
        row_security=None if security is None else security.to_json(),
    )
    formats.commit(
        job.store,
        job.name,
        base=p.base,
        layout=p.layout,
        added=applied.added,
        removed=applied.gone,
        record=said,
    )
    report.version, report.rows_total = version, out.theirs.count
    report.checked_at = out.checked_at
    lost = p.base.lost if p.base else ()
    report.bytes_rewritten = sum(f.size for f in applied.gone if f not in lost)
    _model(job, p, out)
    with contextlib.suppress(WarehouseUnavailable):  # it is published; these may be lost
        job.staging.clear()
        job.tidy(applied.added)
        learnt = prices.learnt(
            job.remembered(),
            frame_bytes=out.frame_bytes,
            shipped=shipped,
            changed=report.rows_changed,
            is_copy=out.is_copy,
            level=p.known.line.level(p.ours.compared.count),
        )
        job.remember(**learnt, **_notes(job, p, out, version))


def _changes(job: Job, p: Prepared, applied: apply.Applied) -> Feed:
    """The change feed of this version; none for a first load, nor across a change of columns."""
    if p.base is None or schema_change.differs(p.layout, p.base.layout):
        return Feed()
    place = (job.spark, job.store, job.name, p.base.version + 1)
    before, after = applied.before, applied.shipped
    if before is None:
        before, after = tuple(f for f in applied.gone if f not in p.base.lost), applied.added
    if fits(before, change_feed.LOTS_MAX) and fits(after, change_feed.LOTS_MAX):
        found = change_feed.write(*place, before=before, after=after, layout=p.layout)
    else:
        found = change_feed.joined(*place, old=before, new=after, layout=p.layout)
    return repair.without_feed(job.store, job.name, found, p.base) if p.base.lost else found

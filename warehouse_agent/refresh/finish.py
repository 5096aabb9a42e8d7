"""Write the next version's files and prove them equal to the source.

Files are written, read back, encoded again and compared with the source's count and total. The
result is a value that no commit names yet: `commit` publishes it. It may wait as long as the
fragment's lock is held, or be dropped: `Job.discard` removes its files. It is not kept on disk,
because it holds the handle of the table's format.

A result may be right and still be refused before anything is written: other row security, a source
with less than half of the rows, rows of different instants.

A failure keeps what was staged for the next attempt, except a failed proof and rows of finished
tiles that cannot be stored: the next attempt must not build on these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from driftline.errors import (
    ConfigurationError,
    DriftlineError,
    DuplicateKey,
    MalformedMessage,
    ProofFailed,
    SnapshotLost,
    TableShrank,
    ValueDoesNotFit,
)
from driftline.reconciliation.sketches import Embedding
from driftline.rows.digests import Digest

from warehouse_agent.config import Proof, Require
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.planning import choice, proof_diagnosis
from warehouse_agent.refresh import schema_change
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared, PreparedPass, measured_column
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.refresh.whole import ComparisonResult
from warehouse_agent.report import counted
from warehouse_agent.storage import row_security
from warehouse_agent.storage.data_files import DataFile, bounds
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import change_feed, digests, proof
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.difference import (
    AllRows,
    BelowKeys,
    ChangedZones,
    ListedRows,
    NoDifference,
    Outcome,
    PlacedRows,
)
from warehouse_agent.tasks.rewrites.replaced_rows import (
    Removal,
    RewrittenFiles,
    RowsByHash,
    RowsByK,
    RowsInTiles,
    files_holding,
    rewrite,
    rewrite_without,
    touched_files,
    within_bounds,
)

# Files of a cut load are written again in so many lots; fewer, if lots would have fewer bytes.
REWRITTEN_LOTS, REWRITTEN_BYTES = 8, 512 << 20
CHANGES_PER_FILE = 64  # with more, each file whose bounds fit counts as touched

_READS_DIFFER = (
    "Run the refresh again. If it repeats, ask the DBA whether the query or view computes other"
    " values each time it is read, as random() and clock_timestamp() do, or an index of its table"
    " lacks rows, which REINDEX mends."
)


@dataclass(frozen=True, slots=True)
class ProvenEqual:
    """Nothing is to be written: the published version `base` is equal to the source."""

    compared: ComparisonResult
    base: Snapshot


@dataclass(frozen=True, slots=True)
class ProvenVersion:
    """Data files that are equal to the source and that no commit names yet.

    `security` is the row security under which the rows were read; None: not told.
    """

    compared: ComparisonResult
    applied: RewrittenFiles
    changes: VersionFeed
    security: PolicyDigests | None


Proven = ProvenEqual | ProvenVersion


def write_and_prove(job: Job, compared: ComparisonResult) -> Proven:
    """Write the next version's files, read them back and prove them equal to the source.

    Returns:
        The proven version; its files lie in folders of the attempt.

    Raises:
        RecipeChanged, TableShrank, SnapshotLost, ConfigurationError: not to be published.
        FrameDamaged, ValueDoesNotFit, DuplicateKey: the source's rows cannot be stored.
        ProofFailed: the files are not equal to the source.
    """
    try:
        return _proven(job, compared)
    except (MalformedMessage, ValueDoesNotFit, DuplicateKey, TableShrank):
        # The next attempt would take up finished tiles without comparing them again.
        if isinstance(compared.prepared, PreparedPass):
            job.staging.clear()
        raise


def accepts(job: Job, out: Outcome) -> bool:
    """Return True if the fragment accepts rows of this consistency."""
    return out.consistency == Require.EXACT.value or job.fragment.require is Require.FUZZY


def _proven(job: Job, compared: ComparisonResult) -> Proven:
    p, out = compared.prepared, compared.found
    before = None if p.base is None else job.notes.policies(p.base)
    if not job.options.accept_schema:
        row_security.refuse_changed(before, out.row_security, job.name)
    is_same = before is None or out.row_security in (None, before)
    if out.is_equal and is_same and p.base is not None and _says_all(job, p, out, p.base):
        return ProvenEqual(compared, p.base)
    _refuse_shrunk(job, p, out)
    _refuse_inconsistent(job, out)
    with job.phase("apply"):
        applied = _apply(job, compared)
    WarehouseFailpoint.DATA_WRITTEN.reach()
    # Two jobs that do not need each other run side by side: each alone leaves cores idle.
    with ThreadPoolExecutor(1) as beside, job.phase("prove"):
        changes = beside.submit(_changes, job, p, applied)
        _prove(job, p, out, applied)
        feed = changes.result()
    if is_same and p.base is not None and _changes_nothing(job, p, out, p.base, feed):
        repair.remove_feed(job.store, job.name, feed)
        return ProvenEqual(compared, p.base)
    WarehouseFailpoint.PROVEN.reach()
    return ProvenVersion(compared, applied, feed, out.row_security or before)


def _says_all(job: Job, p: Prepared, out: Outcome, base: Snapshot) -> bool:
    """Return True if the published version is the working copy, with at least as strong a proof."""
    return p.files == base.files and _is_as_strong(job, p, out, base)


def _is_as_strong(job: Job, p: Prepared, out: Outcome, base: Snapshot) -> bool:
    """Return True if a published version has these columns, with at least as strong a proof."""
    is_other = schema_change.differs(p.layout, base.layout)
    return not is_other and Proof(base.record.proof) >= proof_of(job, p, out)


def _changes_nothing(
    job: Job, p: Prepared, out: Outcome, base: Snapshot, feed: VersionFeed
) -> bool:
    """Return True if the proven files have the rows of the published version.

    They are others where the working copy had staged rows of an attempt that did not end, which
    the source has changed back since.
    """
    is_whole = not base.lost and _is_as_strong(job, p, out, base)
    return is_whole and not any(feed.counts.values())


def proof_of(job: Job, p: Prepared, out: Outcome) -> Proof:
    """Return what a comparison proves of the version that it leads to."""
    if p.part is not None:  # the others are those of the version, whatever that is worth
        return min(Proof.PART, Proof(job.notes.comparison(p.base).proof)) if p.base else Proof.PART
    if out.is_claimed:
        return Proof.CLAIMED
    return Proof.KEYS if out.by_marker else Proof.TOTAL


def _refuse_shrunk(job: Job, p: Prepared, out: Outcome) -> None:
    """Raise TableShrank if more than half of the published, or compared, rows are gone.

    Views that need other rows than before may need less than half of them.
    """
    if p.base is None or job.options.allow_shrink:
        return
    if p.layout.recipe.rows != p.base.layout.recipe.rows:
        return
    before, after, of = p.base.rows, out.theirs.count, ""
    if p.part is not None and not choice.shrank(before, after):
        before, after = p.part.compared.count, after - p.part.rest.count
        of = " of those that were compared"
    if choice.shrank(before, after):
        raise TableShrank(
            f"The source has {counted(after, 'row')} and the warehouse {before:,}{of}: "
            f"more than half are gone. Version {p.base.version} stays published.",
            where=job.name,
            remedy=f"If that is right: driftline refresh {job.name} --allow-shrink",
        )


def _refuse_inconsistent(job: Job, out: Outcome) -> None:
    """Raise SnapshotLost or ConfigurationError if rows of different instants are not accepted."""
    if accepts(job, out):
        return
    allow = 'allow it: `require = "fuzzy"` in the fragment.'
    if out.changed:
        raise SnapshotLost(
            "The data changed while it was read, and the source cannot hold it still.",
            where=job.name,
            remedy=f"Run the refresh again, at a quieter time, or {allow}",
        )
    raise ConfigurationError(
        "The source cannot read this relation at one instant: its engine has no snapshots.",
        where=job.name,
        remedy=f"If rows of different instants are good enough, {allow}",
    )


def _apply(job: Job, compared: ComparisonResult) -> RewrittenFiles:
    """Write the staged rows, and the files again from which rows are removed."""
    p, out = compared.prepared, compared.found
    base = p.base.files if p.base else ()
    updated = _updated(job, p, out)
    if isinstance(out.difference, AllRows):
        return RewrittenFiles(_shipped(job, compared, p.files, updated), (), (), base)
    if isinstance(out.difference, PlacedRows):
        taken = _taken_up(job, p, out.difference)
        return RewrittenFiles(_shipped(job, compared, p.files, updated), taken, (), base)
    removal, hit = _removal(job, p, out)
    touched = touched_files(p.files, hit)
    rewritten: list[DataFile] = []
    before: list[DataFile] = []
    if touched:
        folder = job.folder("rewritten")
        rewritten, before = rewrite(job.steps, folder, touched, p.layout, removal=removal)
    shipped = _shipped(job, compared, before, updated)
    published, changed = set(base), set(touched)
    left = [f for f in p.files if f not in changed]
    kept = tuple(f for f in left if f in published)
    carried = tuple(f for f in left if f not in published)
    stay = set(kept)
    return RewrittenFiles(
        shipped,
        (*rewritten, *carried),
        kept,
        tuple(f for f in base if f not in stay),
        tuple(before) if p.base is not None and p.files == p.base.sound else None,
    )


def _taken_up(job: Job, p: Prepared, gone: PlacedRows) -> tuple[DataFile, ...]:
    """Return the files of rows that were taken up, those that have rows which the source has not
    written again."""
    rewritten = list[DataFile]()
    touched = touched_files(p.taken, [f for f in p.taken if f.path in gone.bits])
    for number, lot in enumerate(_lots(touched)):
        folder = job.folder(f"rewritten-{number}")
        rewritten += rewrite_without(job.steps, folder, lot, p.layout, gone)
        for file in lot:  # another attempt takes up the staged frames
            job.store.remove_file(job.name, *file.path.split("/"))
    changed = set(touched)
    return (*rewritten, *(f for f in p.taken if f not in changed))


def _lots(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield files in lots of a share of their bytes: a disk that holds them, and the frames that
    they were made of, has no room for all of them a second time."""
    most = max(sum(f.size for f in files) // REWRITTEN_LOTS, REWRITTEN_BYTES)
    lot, size = list[DataFile](), 0
    for file in files:
        lot.append(file)
        size += file.size
        if size >= most:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def _shipped(
    job: Job, compared: ComparisonResult, before: Sequence[DataFile], updated: int | None
) -> tuple[DataFile, ...]:
    """Write the rows that came, but for those that were written while they came."""
    p, written = compared.prepared, compared.written
    if written:
        job.steps.note_written(compared.written_bytes)
    came = job.write_staged("shipped", compared.staged, p.layout, p.stamp, before, updated)
    return (*written, *came)


def _updated(job: Job, p: Prepared, out: Outcome) -> int | None:
    """Return the number of updated rows, an upper bound; None: not known."""
    match out.difference:
        case NoDifference():
            return 0
        case AllRows() | PlacedRows():
            if p.base is None:
                return 0
            # A copy that the configuration asks for, or that nothing preceded, comes however few
            # rows changed.
            is_asked = job.fragment.method is choice.Method.FULL or p.is_copied_at_once
            return None if is_asked else sum(f.rows for f in p.files)
        case ListedRows(rows):
            return len(rows.positions)
        case ChangedZones(emptied, listed):
            return len(listed.positions) + emptied.rows
        case BelowKeys(ks, embedding):
            new = max(out.theirs.count - sum(f.rows for f in p.files), 0)
            # Otherwise new rows may lie outside.
            is_whole = isinstance(embedding, Embedding) and embedding.base is None
            return len(ks) - (new if is_whole else 0)


def _removal(job: Job, p: Prepared, out: Outcome) -> tuple[Removal | None, list[DataFile]]:
    """Return the rows to remove, and the files that hold them; perhaps a few more files."""
    match out.difference:
        case NoDifference() | AllRows() | PlacedRows():
            return None, []
        case BelowKeys(ks, embedding) as difference:
            if not len(ks):
                return None, []
            below, files = RowsByK(ks, embedding, p.salt), within_bounds(p.files, difference)
            if len(ks) < CHANGES_PER_FILE * len(files):
                files = files_holding(job.steps, files, p.layout, below)
            return below, files
        case ListedRows(rows):
            numbers = set(rows.file.tolist())
            return RowsByHash.of(rows, p.salt), [f for i, f in enumerate(p.files) if i in numbers]
        case ChangedZones(emptied, listed):
            removal = RowsInTiles(emptied, RowsByHash.of(listed, p.salt))
            numbers = set(listed.file.tolist())
            near = [
                f
                for i, f in enumerate(p.files)
                if i not in numbers and (f.bounds is None or emptied.meets(*f.bounds))
            ]
            hit = set(files_holding(job.steps, near, p.layout, removal))
            return removal, [f for i, f in enumerate(p.files) if i in numbers or f in hit]


def _prove(job: Job, p: Prepared, out: Outcome, applied: RewrittenFiles) -> None:
    """Prove the new version equal to the source; a failure says where rows were lost."""
    if not out.vouched:
        is_exact = out.consistency == "exact"
        files = (*applied.added, *applied.kept)
        proof.refuse_duplicates(job.steps, files, p.layout, name=job.name, exact=is_exact)
    try:
        proof.prove(
            job.steps,
            p.layout,
            job.key_file,
            p.salt,
            files=proof.ProvenFiles(applied.added, applied.kept, p.base.version if p.base else 0),
            theirs=out.theirs,
            name=job.name,
        )
    except ProofFailed as error:
        keeps_staged = False
        try:
            with contextlib.suppress(DriftlineError):
                parts = _parts(job, p, out, applied)
                if proof_diagnosis.reads_differ(parts):
                    error.remedy = _READS_DIFFER
                error.details |= {"cause": proof_diagnosis.diagnose(parts), "rows": parts.counted()}
                # The staged rows are right if a sketch missed an update.
                is_of_keys = isinstance(out.difference, BelowKeys)
                keeps_staged = is_of_keys and proof_diagnosis.is_missed_update(parts)
        finally:
            if not keeps_staged:
                job.staging.clear()
        raise


def _parts(
    job: Job, p: Prepared, out: Outcome, applied: RewrittenFiles
) -> proof_diagnosis.StepDigests:
    """Return the digests of each step's rows, from which the broken step is found."""

    def digest(files: Sequence[DataFile]) -> Digest:
        return digests.total(job.steps, files, p.layout, p.salt) if files else Digest()

    before, stayed = applied.before, digest((*applied.rewritten, *applied.kept))
    is_listed = isinstance(out.difference, PlacedRows)
    return proof_diagnosis.StepDigests(
        theirs=out.theirs,
        # Of staged rows that were listed, those stay that the source said it has.
        ours=stayed if is_listed else p.total,
        came=out.came,
        shipped=digest(applied.shipped),
        stayed=stayed,
        gone=None if before is None else digest(before),
        is_listed=is_listed,
    )


def _changes(job: Job, p: Prepared, applied: RewrittenFiles) -> VersionFeed:
    """Write the change feed; an empty one for a first load and across a change of columns."""
    if p.base is None or schema_change.differs(p.layout, p.base.layout):
        return VersionFeed()
    place = (job.steps, job.store, job.name, p.base.version + 1)
    before, after = applied.before, applied.shipped
    if before is None:
        before, after = tuple(f for f in applied.gone if f not in p.base.lost), applied.added
    ends = bounds((*p.base.files, *applied.added))
    feed = change_feed.write(
        *place,
        before=before,
        after=after,
        layout=p.layout,
        bounds=ends,
        measured=measured_column(p.layout, job.fragment),
    )
    if (places := feed.places) is not None and places.moves is not None and job.fragment.distance:
        moves = replace(places.moves, column=job.fragment.distance.column)  # as it is configured
        feed = replace(feed, places=replace(places, moves=moves))
    WarehouseFailpoint.FEED_WRITTEN.reach()
    return repair.without_feed(job.store, job.name, feed, p.base) if p.base.lost else feed

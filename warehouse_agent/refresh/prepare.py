"""Prepare our side of a refresh, before the stream opens; the same for every scope.

Read the published version. For a pass, resume it or begin one. Otherwise build the working copy,
always a set of files: take up what earlier attempts staged (decision 4), recompute the rows under a
changed recipe, and reduce the copy in Spark. Nothing here is visible to readers.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar

import pyarrow as pa
from driftline.errors import (
    ConfigurationError,
    LimitExceeded,
    MalformedMessage,
    ProofFailed,
    ValueDoesNotFit,
    WarehouseUnavailable,
)
from driftline.reconciliation.ranges import Partition
from driftline.rows import key_order
from driftline.rows.digests import Digest, Salt
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES
from driftline.wire.negotiation import CHUNKS, LATER

from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment
from warehouse_agent.events import PhasesExpected
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history import line_notes
from warehouse_agent.history.forecast_inputs import (
    Situation,
    forecasts,
    foretold_partition,
    marker_of,
    noted_knots,
)
from warehouse_agent.history.notes import NextPartNote, Quantiles
from warehouse_agent.history.refresh_history import Histories, RefreshHistory
from warehouse_agent.methods.interface import OurSide, WorkingCopy
from warehouse_agent.methods.registry import (
    goes_on,
    is_copied_at_once,
    likelihoods,
    opening_for,
    weigh_groups,
)
from warehouse_agent.planning import candidates, change_forecast, choice, time_left
from warehouse_agent.planning.allowance import Allowance
from warehouse_agent.planning.candidates import groups_may_pay
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.plan_inputs import CopyReason, PlanInputs, Unstaged
from warehouse_agent.planning.step_places import UNPACKED, StepKind, StepWork, written
from warehouse_agent.planning.tiling import PassSettings
from warehouse_agent.planning.update_probability import ChangeOutlook
from warehouse_agent.refresh import auxiliary_table, derivation, schema_change
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.derivation import Describe
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import leftovers, repair
from warehouse_agent.storage import conditional_writes, data_files
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import quantiles, row_statistics
from warehouse_agent.tasks.rewrites.restatement import restate
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_chunks import StagedChunks, take_up
from warehouse_agent.tasks.staged_rows import RowsBefore, StagedFrames
from warehouse_agent.tasks.staging import StagedExchange
from warehouse_agent.tasks.steps import DIGEST_BYTES, DIGESTS_FACTOR, Steps, work_of_digests

# Of staged rows that cannot be stored: whatever the source has become, they would fail again.
_UNFIT = (LimitExceeded, MalformedMessage, ValueDoesNotFit)

Features = Collection[str]  # of a source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What every scope has before anything is compared.

    Attributes:
        base: the version that readers see, without its lost files.
        files: the working copy, whose rows are compared.
        changes: the forecast of changed rows; None: nothing is known.
        expected: the forecast of rows that differ: changed and lost ones.
        rows_expected: rows at the source, for progress only.
        stamp: for the statistics of the rows that this refresh writes.
    """

    base: Snapshot | None
    layout: Layout
    files: tuple[DataFile, ...]
    salt: Salt
    fragment_key: bytes = field(repr=False)
    known: PlanInputs
    changes: ChangeForecast | None
    expected: ChangeForecast | None
    rows_expected: int
    stamp: StatisticsStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWhole(_Begun):
    """Our side of one exchange: all rows, or a part. `taken`: files of the rows that a load or copy
    staged which goes on; they are not compared, and of no version."""

    ours: OurSide
    taken: tuple[DataFile, ...] = ()

    @property
    def part(self) -> OurSide | None:
        """Return our side if some rows are not compared; None: all are."""
        return None if self.known.read_at_most is None else self.ours

    @property
    def compared(self) -> Digest:
        """Return the digest of our rows that are compared."""
        return self.ours.compared

    @property
    def total(self) -> Digest:
        """Return the digest of all of our rows."""
        return self.ours.compared + self.ours.rest

    @property
    def turn(self) -> NextPartNote:
        """Return where the next part begins, as far as this refresh learnt it."""
        return self.ours.turn

    @property
    def copied(self) -> CopyReason | None:
        """Return why all rows are asked for; None: the source is asked what differs first."""
        if self.known.unstaged is not None:
            return self.known.unstaged.reason
        return CopyReason.FORECAST if self.is_copied_at_once else None

    @property
    def is_copied_at_once(self) -> bool:
        """Return True if all rows are asked for, and none is compared before."""
        return is_copied_at_once(self.ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPass(_Begun):
    """Our side of a pass over a published version, in tiles; some may be compared already."""

    base: Snapshot
    tiles: Pass
    part: ClassVar[None] = None
    taken: ClassVar[tuple[DataFile, ...]] = ()
    turn: ClassVar[NextPartNote] = NextPartNote()
    is_copied_at_once: ClassVar[bool] = False

    @property
    def compared(self) -> Digest:
        """Return the digest of our rows that are compared: of all."""
        return self.tiles.compared

    @property
    def total(self) -> Digest:
        """Return the digest of all of our rows."""
        return self.tiles.compared


Prepared = PreparedWhole | PreparedPass


def expect_spark(steps: Steps, store: Store, name: str, histories: Histories) -> None:
    """Begin to start Spark if a published version is too large to be reduced in this process.

    The history tells its size, so that the log is not opened twice.
    """
    with contextlib.suppress(Exception):  # the refresh says what is wrong, with the table or Spark
        digests = histories.of(store, name).rows_total * DIGEST_BYTES // DIGESTS_FACTOR
        steps.begin(StepWork(StepKind.DIGESTS, digests))


def prepare(
    job: Job,
    describe: Describe,
    allowance: Allowance | None = None,
    *,
    features: Features = (),
    has: Callable[[str], bool] = lambda _feature: False,
) -> Prepared:
    """Read the published version, build the working copy and reduce it.

    Args:
        describe: asks the source for a relation, once at most: for a first load, where a changed
            schema is accepted, or where views need other columns or rows.
        allowance: what the source allows to be read; None: it did not say.
        features: of the source, as far as it was asked.
        has: asks it for one, if it was not asked.

    Raises: as its steps do, and
        NotNow, LimitExceeded, ConfigurationError: this refresh would be refused
            (`PlanInputs.refusal`).
    """
    base = repair.published(job)
    job.base = -1 if base is None else base.version
    history = job.histories.completed(job.store, job.name, base)
    if base is not None:  # its history may be that of an earlier table of the same name
        job.emit(PhasesExpected(job.name, time_left.usual(history.phases_s(time_left.REFRESHES))))
    layout, told = _layout(job, base, describe)
    if job.fragment.incremental is not None:
        _check_key(layout, job.name)
    measured_column(layout, job.fragment)
    fragment_key = job.fragment_key = _fragment_key(job, base)
    at = _situation(job, base, layout, told, allowance, features, history)
    match at.pass_over:
        case version, wanted:
            return _prepared_pass(job, at, version, wanted, fragment_key)
        case None:
            return _prepared_whole(job, at, layout, told, fragment_key, has)


def _prepared_pass(
    job: Job, at: Situation, base: Snapshot, wanted: PassSettings, fragment_key: bytes
) -> PreparedPass:
    """Resume the pass over a version, or begin one."""
    tiles = auxiliary_table.take_up(job, base, wanted, at.earlier)
    # Of any tile: a pass is priced by its tiles.
    known = at.known(base.sound, tiles.tiling.partition(0), tiles.tiled)
    known.check_allowed()
    changes, expected = forecasts(known)
    _expect_steps(job, known, changes)
    return PreparedPass(
        base=base,
        layout=base.layout,
        files=base.sound,
        salt=tiles.salt,
        fragment_key=fragment_key,
        known=known,
        changes=changes,
        expected=expected,
        rows_expected=base.rows,
        stamp=stamp_of(at),
        tiles=tiles,
    )


def _prepared_whole(
    job: Job,
    at: Situation,
    layout: Layout,
    told: int | None,
    fragment_key: bytes,
    has: Callable[[str], bool],
) -> PreparedWhole:
    """Build the working copy, and reduce it to our side of one exchange."""
    base, stamp, salt = at.base, stamp_of(at), Salt.fresh()
    # All rows are compared, whatever relation these are of; else only those of this one.
    exchange, is_whole = job.exchange(base, layout), at.read_at_most is None
    staged = job.staging.leftovers(exchange, anywhere=is_whole)
    files, chunks = _published_files(job, base, layout), None
    unstaged = None
    if staged and is_whole:
        unstaged = unstaged_of(at, layout, files, staged, job.staging.frame_bytes())
    if unstaged is not None and has(CHUNKS):
        chunks = _staged_chunks(job, at, layout, salt, staged, unstaged, files)
        staged = []
    if chunks is not None:
        known = replace(at.known(files, choice.everything()), unstaged=unstaged)
    else:
        files = _working_copy(job, at, files, layout, stamp, [one.folder for one in staged])
        known = at.known(files, _partition(job, layout, files))
    known.check_allowed()
    changes, expected = forecasts(known)
    rows_expected = (base.rows if base else 0) if told is None else told
    _expect_steps(job, known, changes, size=int(rows_expected * known.prices.copied))
    outlook = outlook_of(base, changes, stamp)
    if groups_may_pay(known, expected):
        likely = likelihoods(job.steps, files, layout, outlook)
        known = weigh_groups(known, expected, likely)
    if later := _is_later(job, at, known) and has(LATER):
        job.steps.expect(work_of_digests(files))  # before the source is asked
    copy = WorkingCopy(
        job.steps,
        job.name,
        layout,
        files,
        salt,
        job.phase,
        outlook,
        turn=job.notes.turn,
        later=later,
        chunks=chunks,
    )
    return PreparedWhole(
        base=base,
        layout=layout,
        files=files,
        salt=salt,
        fragment_key=fragment_key,
        known=known,
        changes=changes,
        expected=expected,
        rows_expected=rows_expected,
        stamp=stamp,
        ours=opening_for(known, expected).plan(known, expected).reduce(copy),
        taken=() if chunks is None else chunks.files,
    )


def _is_later(job: Job, at: Situation, known: PlanInputs) -> bool:
    """Return True if our rows are to be added up while the source scans.

    Not in another attempt: the source may have waited too long for them.
    """
    rate = at.notes.rows_per_s
    if rate is None or job.report.error is not None:
        return False
    scan_s = known.theirs / known.line.rows_per_s
    return change_forecast.reduces_first(at.earlier, known.ours, scan_s)


def _expect_steps(
    job: Job, known: PlanInputs, changes: ChangeForecast | None, *, size: int = 0
) -> None:
    """Begin to start Spark, or processes that read, if a step is expected to need them; `size`:
    bytes of a first load."""
    if known.version is None:
        job.steps.expect(*written(size))
    elif change_forecast.needed_spark(list(known.earlier), changes):
        rewritten = sum(size for _, size in known.files)  # at most
        job.steps.begin(*written(rewritten * UNPACKED))
    elif changes is not None and changes.low > 0:  # else the start may be for nothing
        rewritten = candidates.bytes_rewritten(known, changes.median)
        job.steps.begin_reading(StepWork(StepKind.READ, rewritten * UNPACKED))


def _situation(
    job: Job,
    base: Snapshot | None,
    layout: Layout,
    told: int | None,
    allowance: Allowance | None,
    features: Features,
    history: RefreshHistory,
) -> Situation:
    """Read what is remembered of the fragment; drop few staged rows where a marker is used."""
    notes = job.notes
    differs = base is not None and schema_change.differs(layout, base.layout)
    is_other = differs or job.options.accept_schema
    withdrawn, failed = "", job.report.error  # of the attempt before
    if failed is not None and failed["code"] == ProofFailed.code:
        withdrawn = "the proof of another attempt failed"
    elif is_other:
        withdrawn = "the columns or rows of the relation changed"
    staged = job.staging.frame_bytes() if job.fragment.proof.accepts_marker else 0
    marker = marker_of(
        job.fragment,
        base,
        notes,
        features=features,
        staged_bytes=staged,
        is_trusted=job.options.trust_marker,
        withdrawn=withdrawn,
    )
    if staged and base is not None and marker is not None and marker.mark:
        job.staging.clear()
    return Situation(
        fragment=job.fragment,
        base=base,
        recipe=layout.recipe,
        notes=notes,
        earlier=tuple(history.earlier),
        line=line_notes.line(job.store, job.fragment.source, notes.rows_per_s, features),
        now=datetime.now(UTC),
        is_other=is_other,
        allowance=allowance,
        marker=marker,
        rows_told=told or None,
        days=tuple(history.days),
    )


def _layout(job: Job, base: Snapshot | None, describe: Describe) -> tuple[Layout, int | None]:
    """Return the layout of the new version, and the source's estimate of its rows; None: it was not
    asked."""
    if base is None or job.options.accept_schema:
        reply = describe(job.fragment.relation, derivation.beside(job.fragment, base))
        return derivation.described(reply, job.fragment, base), reply.description.rows_expected
    if derivation.has_other_wishes(job, base):
        reply = describe(job.fragment.relation, derivation.beside(job.fragment, base))
        return derivation.followed(reply, job.fragment, base), None
    schema_change.check_carriers(base.layout, job.fragment)
    return base.layout, None


def outlook_of(
    base: Snapshot | None, changes: ChangeForecast | None, stamp: StatisticsStamp
) -> ChangeOutlook | None:
    """Return the outlook on the updates of rows; None if no version has their statistics.

    Without a forecast the rate of updates is a guess, but parts may have found which rows change.
    """
    if base is None:
        return None
    return stamp.view if changes is not None else replace(stamp.view, share=choice.CHANGE_SHARE)


def stamp_of(at: Situation) -> StatisticsStamp:
    """Return the stamp of the rows that this refresh writes, after earlier ones."""
    earlier = list(at.earlier)
    elapsed_s = (at.now - earlier[-1].at).total_seconds() if earlier else None
    pasts = change_forecast.outcomes(earlier)
    return row_statistics.stamp_for(at.base, pasts, at_s=at.now.timestamp(), elapsed_s=elapsed_s)


def _fragment_key(job: Job, base: Snapshot | None) -> bytes:
    """Return the fragment key, a new one for a first load.

    Raises:
        WarehouseUnavailable: it is gone or damaged; or the store lets two writers of it succeed.
    """
    place = (PRIVATE, "keys", f"{job.name}.key")
    key = job.store.read(*place)
    if key is not None and len(key) == FRAGMENT_KEY_BYTES:
        return key
    if key is not None or base is not None:
        what = "gone" if key is None else f"damaged: {len(key)} bytes, not {FRAGMENT_KEY_BYTES}"
        else_ = "remove it" if base is None else "move the table's folder away"
        raise WarehouseUnavailable(
            f"The fragment key is {what}; fingerprints cannot be compared without it.",
            where=job.name,
            remedy=f"Restore {job.key_file.uri}, or {else_} for a new first load.",
        )
    conditional_writes.check_once(job.store)
    key = secrets.token_bytes(FRAGMENT_KEY_BYTES)
    is_ours = job.store.write_new(key, *place, private=True)
    WarehouseFailpoint.KEY_WRITTEN.reach()
    return key if is_ours else _fragment_key(job, base)


def _check_key(layout: Layout, name: str) -> None:
    """Raise ConfigurationError if the types of the key have no order, which tiles need.

    The source knows how its database sorts them, and refuses the first tile.
    """
    if (column := key_order.unordered(layout.recipe)) is not None:
        raise ConfigurationError(
            f"`incremental` needs a key that has an order, and its column {column.name} has the "
            f"type {column.type}.",
            where=name,
            remedy="Remove `incremental` from the fragment.",
        )


def measured_column(layout: Layout, fragment: Fragment) -> str | None:
    """Return the column in data files that `distance` of a fragment names; None: it has none.

    Raises:
        ConfigurationError: there is no such column, or it is published as no number.
    """
    if (distance := fragment.distance) is None:
        return None
    name, where = distance.column, f"fragments.{fragment.name}.distance.column"
    columns = [column.name for column in layout.recipe.columns]
    remedy = "Name a column that is published as a number, or remove `distance`."
    if name not in columns:
        raise ConfigurationError(
            f"{fragment.name} has no column {name!r}.", where=where, remedy=remedy
        )
    published: str = layout.names[columns.index(name)]
    kind = layout.file_schema.field(published).type
    is_number = (pa.types.is_decimal, pa.types.is_integer, pa.types.is_floating)
    if not any(is_of(kind) for is_of in is_number):
        raise ConfigurationError(
            f"{name!r} of {fragment.name} is published as {kind}, no number.",
            where=where,
            remedy=remedy,
        )
    return published


def _published_files(job: Job, base: Snapshot | None, layout: Layout) -> tuple[DataFile, ...]:
    """Return the published rows in the columns of the next version."""
    files = () if base is None else base.sound
    if base is not None and schema_change.differs(layout, base.layout):
        folder = job.folder("restated")
        files = tuple(restate(job.steps, folder, files, base.layout, layout, job.key_file))
    return files


def unstaged_of(
    at: Situation,
    layout: Layout,
    files: Sequence[DataFile],
    staged: Sequence[StagedExchange],
    frame_bytes: int,
) -> Unstaged | None:
    """Return what is staged of a load, or of a copy that is to go on; None: it is compared.

    Args:
        files: the published rows.
        staged: exchanges over the same, not none; `frame_bytes` of all of them.
    """
    rows = sum(one.rows or 0 for one in staged)
    if not any(f.rows for f in files):
        return Unstaged(rows, frame_bytes)
    if not (reasons := {one.copied for one in staged if one.copied is not None}):
        return None
    known = at.known(files, foretold_partition(at.notes.quantiles, layout, files))
    _, expected = forecasts(known)
    began = min((one.began for one in staged if one.began is not None), default=at.now)
    share = change_forecast.share_since(began, at.earlier, expected, known.ours, at.now)
    is_said = CopyReason.VERDICT in reasons
    reason = CopyReason.VERDICT if is_said else CopyReason.FORECAST
    unstaged = Unstaged(rows, frame_bytes, rows * share, reason)
    return unstaged if goes_on(known, expected, unstaged) else None


def _staged_chunks(
    job: Job,
    at: Situation,
    layout: Layout,
    salt: Salt,
    staged: Sequence[StagedExchange],
    unstaged: Unstaged,
    files: Sequence[DataFile],
) -> StagedChunks | None:
    """Take up a load or copy that was cut, which replaces the rows of `files`; None: its rows
    cannot be stored."""
    uris = [uri for one in staged for uri in job.staging.uris(one.folder)]
    frames = StagedFrames(uris, unstaged.frame_bytes, unstaged.changed, RowsBefore(files, None))
    place = (job.steps, job.folder("taken"), frames, layout, job.key_file)
    try:
        return take_up(*place, stamp_of(at), salt)
    except _UNFIT:  # the source sends these rows again
        job.staging.clear()
        return None


def _working_copy(
    job: Job,
    at: Situation,
    files: tuple[DataFile, ...],
    layout: Layout,
    stamp: StatisticsStamp,
    folders: Sequence[str],
) -> tuple[DataFile, ...]:
    """Return the published rows, `files`, with what unfinished exchanges staged merged into
    them."""
    base = at.base
    is_whole = at.read_at_most is None
    policies = None if is_whole or base is None else job.notes.policies(base)
    if policies is not None and policies.hides:
        # The source sends policies at the end of an exchange, and a part may not compare staged
        # rows that they hide.
        job.staging.clear()
        return files
    if not folders:
        return files
    try:
        return leftovers.merge(job, files, layout, folders, stamp)
    except _UNFIT:  # the source sends these rows again
        job.staging.clear()
        return files


def _partition(job: Job, layout: Layout, files: tuple[DataFile, ...]) -> Partition:
    rows, is_integer = sum(f.rows for f in files), layout.recipe.integer_key
    if not is_integer or not rows:
        return choice.partition_for([], rows, integer_key=is_integer)
    knots = noted_knots(job.notes.quantiles, layout, rows, data_files.bounds(files))
    if knots is None:
        shares = [i / choice.QUANTILES for i in range(choice.QUANTILES + 1)]
        knots = quantiles.samples_of(job.steps, files, layout).quantiles(shares)
        measured = Quantiles(tuple(knots), rows, layout.names[0])
        job.notes = replace(job.notes, quantiles=measured)
    return choice.partition_for(knots, rows, integer_key=True)

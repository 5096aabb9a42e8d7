"""What is known of published tables: versions, how fresh they are and how they were proven.

The Delta log and the notes of earlier refreshes are read, without Spark and, unless a caller asks
for it, without the source. The fields of `PublishedState` are those of `status --json` and stable:
jobs read them. For a fragment that was never published, all are null but what is staged and what
failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from driftline.errors import NotFound, WarehouseUnavailable

from warehouse_agent.columns.layout import Layout
from warehouse_agent.components import phase_history
from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history import alarms, command_records, failures, refresh_history
from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.failures import Failure
from warehouse_agent.history.notes import Notes, UncomparedNote
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.history.totals import OlderTotals, Totals
from warehouse_agent.planning.marker_state import MarkerAudit
from warehouse_agent.report import (
    JSON_SCHEMA,
    fingerprint_kind,
    miss_probability,
    utc_at,
    years_until_missed,
)
from warehouse_agent.runs.each_fragment import published, published_view
from warehouse_agent.storage import formats
from warehouse_agent.storage.staged_files import StagedRows, staged_of_load
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Version, VersionHeader, VersionRecord
from warehouse_agent.views.timings import longest_s
from warehouse_agent.visible_versions.members import Member

if TYPE_CHECKING:
    from warehouse_agent.scheduler.probes import ProbedChange, SourceAnswer

READ_AT_ONCE = 4  # tables
INTERVAL_S = 86_400.0  # assumed time between two refreshes, before there were two


@dataclass(frozen=True, slots=True)
class UnseenChanges:
    """Changed rows of a fragment that no flip shows, and since when, ISO 8601 in UTC."""

    rows: int
    since: str


@dataclass(frozen=True, slots=True)
class RefreshTotals:
    """The totals of all refreshes of a table, since its history began.

    Attributes:
        since: the first day or month that is known apart; None: there is none.
        refreshes: that went well, first loads among them.
        failed, put_off: that failed, or that their source put off.
        rows_loaded: by first loads.
        rows_inserted, rows_updated, rows_deleted: by all others.
        bytes_sent, bytes_received, seconds, held_back_s: of all.
        copy_bytes, bytes_beside: that copies would have taken, where that is known, and that these
            refreshes moved.
        source_rows_read, source_scans: by the source, in `source_known_of` of all refreshes.
        requests: to a bucket, where they were counted.
        whole_reads: these rows, in reads of the whole table as it is now; None: not known.
        text: the same in words.
    """

    since: str | None
    refreshes: int
    failed: int
    put_off: int
    rows_loaded: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    bytes_sent: int
    bytes_received: int
    seconds: float
    held_back_s: float
    copy_bytes: int
    bytes_beside: int
    source_rows_read: int
    source_scans: int
    source_known_of: int
    requests: int
    whole_reads: float | None
    text: str

    @classmethod
    def of(cls, one: Totals, since: str | None, whole_reads: float | None) -> RefreshTotals:
        """Return totals as they are shown, since a day or month."""
        return cls(
            since,
            one.refreshes,
            sum(one.failed.values()),
            one.put_off,
            one.loaded,
            one.inserted,
            one.updated,
            one.deleted,
            one.sent,
            one.received,
            round(one.seconds, 3),
            round(one.held_back_s, 3),
            one.copied,
            one.moved_beside,
            one.rows_read,
            one.scans,
            one.read_in,
            one.requests,
            None if whole_reads is None else round(whole_reads, 3),
            f"{f'since {since}: ' if since else ''}{one.text(whole_reads)}",
        )

    @classmethod
    def of_all(cls, every: Sequence[RefreshTotals]) -> RefreshTotals:
        """Return the totals of several tables together."""
        whole = reduce(Totals.plus, (one.as_totals for one in every), Totals())
        reads = [one.whole_reads for one in every if one.whole_reads is not None]
        since = min((one.since for one in every if one.since), default=None)
        return cls.of(whole, since, sum(reads) if reads else None)

    @property
    def as_totals(self) -> Totals:
        """Return them as sums that can be added."""
        return Totals(
            refreshes=self.refreshes,
            failed={"": self.failed} if self.failed else {},
            put_off=self.put_off,
            loaded=self.rows_loaded,
            inserted=self.rows_inserted,
            updated=self.rows_updated,
            deleted=self.rows_deleted,
            sent=self.bytes_sent,
            received=self.bytes_received,
            seconds=self.seconds,
            held_back_s=self.held_back_s,
            copied=self.copy_bytes,
            moved_beside=self.bytes_beside,
            rows_read=self.source_rows_read,
            scans=self.source_scans,
            read_in=self.source_known_of,
            requests=self.requests,
        )


@dataclass(frozen=True, slots=True)
class PublishedState:
    """Published state of a fragment or a view. Times are ISO 8601, UTC; `bytes` is the size of its
    files."""

    name: str
    version: int | None = None
    rows_total: int | None = None
    as_of: str | None = None
    checked_at: str | None = None
    published_at: str | None = None
    consistency: str | None = None
    proof: str | None = None
    fingerprint: str | None = None
    miss_probability: float | None = None
    years_until_a_change_is_missed: float | None = None
    files: int | None = None
    bytes: int | None = None  # of its files; what a refresh moved is `RefreshCost.bytes`
    row_security: bool | None = None  # policies of the source hide rows; null: not known
    kind: str = "fragment"  # or "kept", for a relation that only views need, or "view"
    visible_version: int | None = None  # which readers are given; null without a table of versions
    visible_as_of: str | None = None  # of that version
    inputs: dict[str, int] | None = None  # of a view, the versions that it was made of
    stale: str | None = None  # of a view: why it stayed behind its inputs
    ahead: UnseenChanges | None = None  # of a fragment
    staleness: dict[str, Any] | None = None  # of a view, when it last moved; seconds
    audit: MarkerAudit | None = None  # of the marker, the last one; null: no marker is used
    marker_warnings: list[str] | None = None  # promises that are not kept; null: none is known
    part: UncomparedNote | None = None  # what the last refresh left, if it compared a part
    activity: ProbedChange | None = None  # of a fragment whose source was asked
    other: str | None = None  # what another program wrote after this version; null: nothing
    damaged: int | None = None  # data files noted as missing or damaged; null: none
    failed: Failure | None = None  # the refreshes since the last that went well
    recovered: list[Failure] | None = None  # of the last day, before one went well
    put_off_until: str | None = None  # its source reads nothing before; null: it does
    state: MonitoringState | None = None
    alarms: list[str] | None = None  # why it is not ok; null: it is
    tried_at: str | None = None  # when the newest refresh ended, well or not; null: not known
    late_s: float | None = None  # since a refresh went well, if it is late; null: it is not
    late_after_s: float | None = None  # without a refresh, it is late; null: it never is
    totals: RefreshTotals | None = None  # of all its refreshes, if they are asked for
    staged: StagedRows | None = None  # by first loads that were cut; null: nothing, or a version
    schema: int = JSON_SCHEMA


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A version of a table, the failures between it and the next one, and its staleness, if known.

    `is_given`: readers are given it, although there is a newer one. `requests`: of the refresh that
    published it, to a bucket, by kind, if known.
    """

    version: int
    record: VersionRecord
    failed: tuple[Failure, ...]
    staleness: Mapping[str, Any] | None
    is_given: bool
    requests: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """The versions of a table, the newest first, and what its history still says beside them.

    Attributes:
        failed: refreshes that failed before the first version, or while none was published.
        is_moved: staleness is known of some versions.
        folded: what older lines of the history came to.
        missing: nothing is published; None: something is.
    """

    versions: tuple[HistoryEntry, ...]
    failed: tuple[Failure, ...]
    is_moved: bool
    folded: OlderTotals
    missing: NotFound | None = None


@dataclass(frozen=True, slots=True)
class _ReadTable:
    """A table as it was read: its state, its history, and, of a fragment, its version and notes."""

    state: PublishedState
    history: RefreshHistory
    version: VersionHeader | None = None
    notes: Notes = field(default_factory=Notes)


def full_disk(config: WarehouseConfig) -> WarehouseUnavailable | None:
    """Return why the next refresh may find no room; None: it does, or it is no disk."""
    try:
        Store.of(config).refuse_full(0)
    except WarehouseUnavailable as error:
        return error
    return None


@contextlib.contextmanager
def reading(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    now: datetime,
    *,
    ask: bool,
    totals: bool = False,
    recovered: bool = False,
) -> Iterator[Callable[[Fragment | View], PublishedState]]:
    """Read what is published of tables, READ_AT_ONCE at a time; yield what returns that of each.

    Args:
        ask: ask the sources of the fragments whether anything changed.
        totals: read whole histories, and add them up.
        recovered: read whole histories, and say what failed in the last day before one went well.
    """
    store = Store.of(config)
    fragments = [one for one in chosen if isinstance(one, Fragment)] if ask else []
    said = _answers(fragments)
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        flipped = pool.submit(_members, store)
        killed = [
            one for one in command_records.current(store, now.timestamp()) if not one.is_running
        ]
        whole = totals or recovered
        read = {one.name: pool.submit(_read, store, one, ask=ask, whole=whole) for one in chosen}

        def state(one: Fragment | View) -> PublishedState:
            known = read[one.name].result()
            table = _ahead(store, _visible(known.state, flipped.result()))
            table = replace(table, activity=_activity(known, said.get(one.name)))
            if totals:
                by_day, rows = known.history.by_day, table.rows_total
                reads = by_day.whole.rows_read / rows if rows else None
                totalled = RefreshTotals.of(by_day.whole, by_day.since, reads)
                table = replace(table, totals=totalled)
            history = known.history
            if recovered:
                table = replace(table, recovered=failures.recovered(history, now) or None)
            if table.kind != "view":
                newest = known.version
                run = None if newest is None else (newest.record.report or {}).get("run")
                version = None if newest is None else newest.version
                history = command_records.with_killed(killed, one.name, history, version, run)
            return _judged(config, history, one, table, now)

        try:
            yield state
        finally:
            pool.shutdown(cancel_futures=True)


def _judged(
    config: WarehouseConfig,
    history: RefreshHistory,
    one: Fragment | View,
    table: PublishedState,
    now: datetime,
) -> PublishedState:
    """Add the failures since the last success, and what monitoring makes of the table."""
    is_fragment = isinstance(one, Fragment) and table.version is not None
    known = alarms.known(
        history,
        now,
        version=table.version,
        checked_at=table.checked_at if is_fragment else None,
        interval_s=longest_s(config, one) if isinstance(one, Fragment) else None,
        damaged=table.damaged or 0,
        stale=table.stale,
    )
    wrong = alarms.alarms(known)
    return replace(
        table,
        failed=known.failure,
        put_off_until=known.put_off_until,
        state=alarms.worst([one.state for one in wrong] or [MonitoringState.OK]),
        alarms=[one.why for one in wrong] or None,
        tried_at=history.tried_at,
        late_s=alarms.late_s(known),
        late_after_s=alarms.limit_s(known),
    )


def _members(store: Store) -> Mapping[str, Member]:
    """Return the members of the newest warehouse version; none without a table of versions."""
    if not store.files(PRIVATE, "warehouse", "_delta_log"):
        return {}
    from warehouse_agent.visible_versions import warehouse_versions

    newest = warehouse_versions.newest(store)
    return newest.members if newest else {}


def _visible(table: PublishedState, members: Mapping[str, Member]) -> PublishedState:
    """Add what the newest warehouse version says of a table.

    It knows what a view is made of that keeps its version because nothing changed in it.
    """
    if (member := members.get(table.name)) is None:
        return table
    table = replace(
        table, visible_version=member.version, visible_as_of=member.as_of, stale=member.stale
    )
    if table.kind != "view" or table.version != member.version:
        return table
    return replace(
        table,
        as_of=member.as_of,
        consistency=member.consistency,
        proof=member.proof,
        inputs=dict(member.inputs),
    )


def _ahead(store: Store, table: PublishedState) -> PublishedState:
    """Add the changes of a fragment that no flip shows, if it is ahead."""
    visible, version = table.visible_version, table.version
    if table.kind == "view" or visible is None or version is None or version <= visible:
        return table
    entries = formats.entries(store, table.name, after=visible)
    entries = [entry for entry in entries if entry.version <= version]
    rows = sum(e.record.rows_changed for e in entries if e.record is not None)
    since = min((e.committed for e in entries), default=datetime.now(UTC))
    return replace(table, ahead=UnseenChanges(rows, utc_at(since.timestamp())))


def _answers(fragments: Sequence[Fragment]) -> Mapping[str, SourceAnswer]:
    """Ask the sources of fragments what changed; return what each said, by fragment."""
    if not fragments:
        return {}
    from warehouse_agent.scheduler import probes  # gRPC, which a state needs for nothing else

    return probes.asked(fragments)


def _activity(known: _ReadTable, said: SourceAnswer | None) -> ProbedChange | None:
    """Return what a source says of the changes since a version; None: it was not asked."""
    if said is None:
        return None
    from warehouse_agent.scheduler import probes

    return probes.change(known.version, known.notes, known.history, said)


def _read(store: Store, one: Fragment | View, *, ask: bool, whole: bool) -> _ReadTable:
    """Read what is published of a table, and the history of its refreshes.

    Args:
        ask: its source is asked; what it says is compared with all refreshes since the load.
        whole: read all of the history.
    """
    if isinstance(one, View):
        return _view_state(store, one, whole=whole)
    version, notes = _published(store, one.name)
    table = _fragment_state(store, one.name, version, notes)
    table = replace(table, kind="kept" if one.is_kept else "fragment")
    enough = refresh_history.earlier_refreshes(None) if ask else failures.until_success()
    history = refresh_history.read(store, one.name, None if whole else enough)
    return _ReadTable(table, history, version, notes)


def _view_state(store: Store, one: View, *, whole: bool) -> _ReadTable:
    """Read what is published of a view, and the history of its refreshes."""
    snapshot = formats.view_header(store, one.name)
    enough = None if whole else phase_history.last_staleness
    history = refresh_history.read(store, one.name, enough)
    if snapshot is None:
        return _ReadTable(PublishedState(one.name, kind="view"), history)
    record = snapshot.record
    table = PublishedState(
        name=one.name,
        version=snapshot.version,
        rows_total=snapshot.rows,
        as_of=record.as_of,
        checked_at=record.checked_at,
        published_at=record.published_at,
        consistency=record.consistency,
        proof=record.proof,
        files=snapshot.files,
        bytes=snapshot.bytes,
        kind="view",
        inputs=dict(record.inputs or {}),
        other=snapshot.other,
        staleness=next((dict(s) for _, s in phase_history.staleness(history)), None),
    )
    return _ReadTable(table, history)


def fragment_state(store: Store, name: str) -> PublishedState:
    """Return the published state of a fragment. Raises WarehouseUnavailable."""
    return _fragment_state(store, name, *_published(store, name))


def _published(store: Store, name: str) -> tuple[VersionHeader | None, Notes]:
    """Return the published version of a fragment, and its notes; None: nothing is published."""
    version = formats.header(store, name)
    return version, Notes() if version is None else Notes.read(store, name)


def _fragment_state(
    store: Store, name: str, snapshot: VersionHeader | None, notes: Notes
) -> PublishedState:
    """Return the published state of a fragment whose version and notes were read."""
    if snapshot is None:
        return PublishedState(name, staged=staged_of_load(store, name))
    record = snapshot.record
    comparison, security = notes.comparison(snapshot), notes.policies(snapshot)
    interval = interval_s(snapshot, formats.oldest(store, name) if snapshot.version else None)
    assert isinstance(snapshot.layout, Layout), "the version of a fragment"
    recipe = snapshot.layout.recipe
    is_total, marking = comparison.proof == "total", notes.marking(snapshot)
    probability = miss_probability(record.rows_changed, recipe) if is_total else None
    return PublishedState(
        name=name,
        version=snapshot.version,
        rows_total=snapshot.rows,
        as_of=comparison.as_of,
        checked_at=comparison.checked_at,
        published_at=record.published_at,
        consistency=comparison.consistency,
        proof=comparison.proof,
        fingerprint=fingerprint_kind(recipe),
        miss_probability=probability,
        years_until_a_change_is_missed=(
            None if probability is None else years_until_missed(probability, interval)
        ),
        files=snapshot.files,
        bytes=snapshot.bytes,
        row_security=None if security is None else security.hides,
        audit=marking.audit,
        marker_warnings=list(marking.warnings) or None,
        part=notes.part_left(snapshot),
        other=snapshot.other,
        damaged=_damaged(store, name, notes) if notes.damaged else None,
    )


def _damaged(store: Store, name: str, notes: Notes) -> int | None:
    """Return how many data files of the published version are noted as damaged; None: none."""
    newest = formats.head(store, name)
    return sum(f.path in notes.damaged for f in newest.files) or None if newest else None


def interval_s(newest: Version, oldest: tuple[int, VersionRecord] | None) -> float:
    """Return the mean time between versions in seconds, at least 1."""
    if oldest is None or oldest[0] == newest.version:
        return INTERVAL_S
    first, last = (datetime.fromisoformat(r.published_at) for r in (oldest[1], newest.record))
    return max((last - first).total_seconds() / (newest.version - oldest[0]), 1.0)


def history_of(store: Store, one: Fragment | View) -> VersionHistory:
    """Return the versions of a fragment or a view, and which refreshes failed after each.

    Raises:
        WarehouseUnavailable: the table cannot be read.
    """
    known = refresh_history.read(store, one.name)
    failed = failures.kept(known)
    look = published_view if isinstance(one, View) else published
    try:
        head = look(store, one.name)
    except NotFound as missing:
        return VersionHistory((), tuple(failed), False, known.folded, missing)
    entries = formats.entries(store, one.name, head)
    ours = [(e.version, e.record) for e in entries if e.record]
    member = _members(store).get(one.name)
    moved = dict(phase_history.staleness(known))
    new = (line for line in known.successes if line.version != line.previous_version)
    requests = {line.version: line.spent.requests for line in new}
    versions = []
    for version, record in ours:
        # Both are in UTC, to the second.
        later = [f for f in failed if f.at is not None and f.at >= record.published_at]
        failed = failed[len(later) :]
        is_given = member is not None and member.version == version != ours[0][0]
        staleness, asked = moved.get(version), requests.get(version)
        versions.append(HistoryEntry(version, record, tuple(later), staleness, is_given, asked))
    return VersionHistory(tuple(versions), tuple(failed), bool(moved), known.folded)

"""`status` and `history`: published versions, how fresh they are and how they were proven.

Both read the Delta log and the notes of earlier refreshes, without Spark and, unless `--ask` is
given, without the source.
The fields are stable: jobs read them. For a fragment that was never published, all are null.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from driftline.errors import NotFound

from warehouse_agent.components import phase_history
from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history import alarms, failures, refresh_history
from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.failures import Failure
from warehouse_agent.history.notes import Notes, UncomparedNote
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.planning.marker_state import MarkerAudit
from warehouse_agent.report import (
    HELD_BACK_SHOWN_S,
    age,
    counted,
    fingerprint_kind,
    miss_probability,
    utc_at,
    years_until_missed,
)
from warehouse_agent.runs.each_fragment import each, published, published_view
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot, VersionRecord
from warehouse_agent.views.selection import chosen as named
from warehouse_agent.views.timings import longest_s
from warehouse_agent.visible_versions.members import Member

READ_AT_ONCE = 4  # tables
ALARMS_SHOWN = 5  # in the first line of `--check`
INTERVAL_S = 86_400.0  # assumed time between two refreshes, before there were two
# Fields of a version for Driftline alone.
_OURS = ("layout", "clock", "changes_files", "report", "total")
HEADINGS = ("fragment", "version", "rows", "equal to the source", "checked", "consistency", "proof")
NEVER = "nothing published yet"
_BRAKES = ("held_back_s", "snapshot_s")  # of the report of a version
_NUMBERS = ("version", "rows")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Status:
    """Published state of a fragment. Times are ISO 8601, UTC; `bytes` is the size of its files."""

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
    bytes: int | None = None
    row_security: bool | None = None  # policies of the source hide rows; null: not known
    kind: str = "fragment"  # or "kept", for a relation that only views need, or "view"
    visible_version: int | None = None  # which readers are given; null without a table of versions
    visible_as_of: str | None = None  # of that version
    inputs: dict[str, int] | None = None  # of a view, the versions that it was made of
    stale: str | None = None  # of a view: why it stayed behind its inputs
    ahead: dict[str, Any] | None = None  # of a fragment: changed rows that no flip shows, and since
    staleness: dict[str, Any] | None = None  # of a view, when it last moved; seconds
    audit: dict[str, Any] | None = None  # of the marker, the last one; null: no marker is used
    marker_warnings: list[str] | None = None  # promises that are not kept; null: none is known
    part: UncomparedNote | None = None  # what the last refresh left, if it compared a part
    activity: dict[str, Any] | None = None  # of a fragment whose source was asked
    other: str | None = None  # what another program wrote after this version; null: nothing
    damaged: int | None = None  # data files noted as missing or damaged; null: none
    failed: dict[str, Any] | None = None  # the refreshes since the last that went well
    put_off_until: str | None = None  # its source reads nothing before; null: it does
    state: str | None = None  # in the terms of monitoring: ok, warning, critical, unknown
    alarms: list[str] | None = None  # why it is not ok; null: it is
    late_s: float | None = None  # since a refresh went well, if it is late; null: it is not

    def cells(self, now: datetime) -> tuple[str, ...]:
        """Return a row of the table, under HEADINGS; only the name if nothing is published."""
        if self.version is None:
            return (self.name,)
        assert self.rows_total is not None
        compared = [age(at, now) for at in (self.as_of, self.checked_at)]
        how = (self.consistency or "", self.proof or "")
        return (self.name, str(self.version), f"{self.rows_total:,}", *compared, *how)


def status(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    ask: bool,
    as_json: bool,
    check: bool = False,
) -> list[int]:
    """Print the published state of each fragment and view, as a table or as JSON.

    Args:
        ask: ask the sources of the fragments whether anything changed.
        check: print what needs a look instead of the table, the state of all first, and end the
            process with the exit code of that state, as monitoring reads them.
    """
    store, shown, now = Store.of(config), list[Status](), datetime.now(UTC)
    activities = _asked(store, chosen) if ask else {}
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        flipped = pool.submit(_members, store)
        read = {f.name: pool.submit(_status_of, store, f) for f in chosen}

        def one(fragment: Fragment | View) -> None:
            known, history = read[fragment.name].result()
            table = _ahead(store, _visible(known, flipped.result()))
            table = replace(table, activity=activities.get(fragment.name))
            table = _judged(config, history, fragment, table, now)
            if as_json:
                print(json.dumps(asdict(table)), flush=True)
            shown.append(table)

        try:
            codes = each(chosen, one, as_json=as_json, command="status")
        finally:
            pool.shutdown(cancel_futures=True)
    if check:
        unread = [one.name for one, code in zip(chosen, codes, strict=True) if code]
        state, lines = checked_text(shown, unread, now)
        if not as_json:
            print("\n".join(lines))
        sys.exit(state.value)
    if shown and not as_json:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(text_of(shown, now, width)))
    return codes


def checked_text(
    shown: Sequence[Status], unread: Sequence[str], now: datetime
) -> tuple[MonitoringState, list[str]]:
    """Return the state of all tables, and it in words: one line, then what to do.

    Args:
        unread: names of tables whose state cannot be read, which has been said.
        now: with a time zone.
    """
    states = [MonitoringState[(s.state or "ok").upper()] for s in shown]
    state = alarms.worst([*states, *(MonitoringState.UNKNOWN for _ in unread)])
    said = [f"{s.name}: {'; '.join(s.alarms)}" for s in shown if s.alarms]
    said += [f"{name}: its state cannot be read" for name in unread]
    first = f"{state.name}: {counted(len(shown) + len(unread), 'table')}"
    if said:
        more = f" and {len(said) - ALARMS_SHOWN} more" if len(said) > ALARMS_SHOWN else ""
        first = f"{first}, {len(said)} to look at: {', '.join(said[:ALARMS_SHOWN])}{more}"
    # Monitoring takes what follows a bar for numbers.
    return state, [first.replace("|", "/"), *(x for s in shown for x in _failed(s, now))]


def _judged(
    config: WarehouseConfig,
    history: RefreshHistory,
    one: Fragment | View,
    table: Status,
    now: datetime,
) -> Status:
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
        failed=None if known.failure is None else known.failure.to_json(),
        put_off_until=known.put_off_until,
        state=alarms.worst([one.state for one in wrong] or [MonitoringState.OK]).word,
        alarms=[one.why for one in wrong] or None,
        late_s=alarms.late_s(known),
    )


def text_of(shown: Sequence[Status], now: datetime, width: int | None) -> list[str]:
    """Return a table of fragments for people, and remarks on them, as lines.

    Args:
        now: with a time zone.
        width: characters in a line; None: no limit.
    """
    lines = _table([status.cells(now) for status in shown], width)
    lines += [line for status in shown for line in _failed(status, now)]
    if any(status.proof == "part" for status in shown):
        lines.append("part: only some rows were compared since the last full comparison")
    lines += [line for status in shown for line in _audit(status, now)]
    lines += [_part_line(status.name, status.part) for status in shown if status.part is not None]
    if hidden := [status.name for status in shown if status.row_security]:
        lines.append(f"row security hides rows of the source from its login: {', '.join(hidden)}")
    lines += [f"{s.name}: {s.other}; the next refresh looks at its rows" for s in shown if s.other]
    lines += [f"{s.name} stays behind its inputs: {s.stale}" for s in shown if s.stale]
    lines += [
        f"readers are given version {s.visible_version} of {s.name} until the next flip"
        f"{_waiting(s, now)}"
        for s in shown
        if s.visible_version not in (None, s.version)
    ]
    lines += [f"{s.name} was {told} when it last moved" for s in shown if (told := _stale(s))]
    lines += [f"{s.name}: {s.activity['text']}" for s in shown if s.activity is not None]
    sure = [status for status in shown if status.miss_probability is not None]
    if sure:
        worst = max(sure, key=lambda status: status.miss_probability or 0.0)
        lines.append(
            f"probability of a missed change: {'at most ' if len(sure) > 1 else ''}"
            f"{worst.miss_probability:.0e} per refresh"
        )
    return lines


def _failed(status: Status, now: datetime) -> list[str]:
    """Return which refreshes of a table failed, why, and what to do, as lines; and what else needs
    a look, or waits for its source."""
    lines = []
    if status.failed is not None:
        lines += Failure(**status.failed).lines(status.name, now)
    if status.damaged:
        files = counted(status.damaged, "data file")
        lines.append(f"{status.name}: {files} damaged; the next refresh pulls the rows again")
    if status.late_s is not None:
        late = alarms.late_text(status.late_s)
        lines.append(f"{status.name}: {late}; does `driftline run` or a timer still run?")
    if status.put_off_until is not None:
        lines.append(f"{status.name}: its source reads nothing before {status.put_off_until}")
    return lines


def _audit(status: Status, now: datetime) -> list[str]:
    """Return what is wrong with a marker, and what its last audit found, as lines."""
    lines = [f"{status.name}: {warning}" for warning in status.marker_warnings or ()]
    audit = None if status.audit is None else MarkerAudit.from_json(status.audit)
    if audit is None:
        return lines
    if status.proof == "keys":
        lines.append(
            f"{status.name}: all keys were compared, updated rows are those of its marker; all rows"
            f" were compared {age(audit.at, now)}"
        )
    if audit.missed:
        about = "about " if audit.is_sample else ""
        lines.append(
            f"{status.name}: the marker missed {about}{audit.missed:,} of"
            f" {counted(audit.changes, 'change')} since {(audit.since or '')[:10]}"
            f" ({', '.join(audit.keys)})"
        )
    return lines


def _part_line(name: str, part: UncomparedNote) -> str:
    """Return what the last refresh of a fragment left, and why."""
    said = f"{name}: the last refresh left {counted(part.rows_left, 'row')}"
    if part.updates_left is not None:
        said += f", of which {part.updates_left:,.1f} are expected to have been updated"
    return f"{said}; the source allowed {part.allowed}" if part.allowed else said


def _asked(store: Store, chosen: Sequence[Fragment | View]) -> Mapping[str, dict[str, Any]]:
    """Return what the sources say of the changes since the published versions."""
    from warehouse_agent.scheduler import probes  # gRPC, which `status` needs for nothing else

    fragments = [one for one in chosen if isinstance(one, Fragment)]
    return probes.asked(store, fragments)


def _waiting(status: Status, now: datetime) -> str:
    """Return what waits for the views over a fragment."""
    if status.ahead is None:
        return ""
    rows, since = counted(status.ahead["rows"], "changed row"), status.ahead["since"]
    verb = "waits" if status.ahead["rows"] == 1 else "wait"
    return f": {rows} {verb}, the oldest since {age(since, now).removesuffix(' ago')}"


def _stale(status: Status) -> str:
    """Return the staleness of a view in words; nothing if it is not known."""
    body = status.staleness
    if not body or body.get("vs_s") is None:
        return ""
    return (
        f"{body['vs_s']:,.1f} s stale (S1 {body['s1_s']:,.1f} s, S2 {body['s2_s']:,.1f} s, "
        f"average of {counted(body['rows'], 'changed row')})"
    )


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Align cells under HEADINGS; on a terminal that is too narrow, list them below the name."""
    whole = [row for row in rows if len(row) == len(HEADINGS)]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *whole, strict=True)]
    widths[0] = max(widths[0], *(len(row[0]) for row in rows))
    headings = HEADINGS if whole else HEADINGS[:1]
    lines = [_line(row, widths) for row in (headings, *(r if r[1:] else (*r, NEVER) for r in rows))]
    if width is None or max(map(len, lines)) <= width:
        return lines
    lines = []
    for row in rows:
        cells = [f"  {h}: {cell}" for h, cell in zip(HEADINGS[1:], row[1:], strict=False)]
        lines += [row[0], *(cells or [f"  {NEVER}"])]
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if heading in _NUMBERS and cell != NEVER else cell.ljust(width)
        for cell, width, heading in zip(cells, widths, HEADINGS, strict=False)
    ]
    return _GAP.join(aligned).rstrip()


def _members(store: Store) -> Mapping[str, Member]:
    """Return the members of the newest warehouse version; none without a table of versions."""
    if not store.files(PRIVATE, "warehouse", "_delta_log"):
        return {}
    from warehouse_agent.visible_versions import warehouse_versions

    newest = warehouse_versions.newest(store)
    return newest.members if newest else {}


def _visible(table: Status, members: Mapping[str, Member]) -> Status:
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


def _ahead(store: Store, table: Status) -> Status:
    """Add the changes of a fragment that no flip shows, if it is ahead."""
    visible, version = table.visible_version, table.version
    if table.kind == "view" or visible is None or version is None or version <= visible:
        return table
    entries = formats.entries(store, table.name, after=visible)
    entries = [entry for entry in entries if entry.version <= version]
    rows = sum(e.record.rows_changed for e in entries if e.record is not None)
    since = min((e.committed for e in entries), default=datetime.now(UTC))
    at = utc_at(since.timestamp())
    return replace(table, ahead={"rows": rows, "since": at})


def _status_of(store: Store, one: Fragment | View) -> tuple[Status, RefreshHistory]:
    """Return what is published of a table, and the history of its refreshes."""
    if isinstance(one, Fragment):
        table = replace(status_of(store, one.name), kind="kept" if one.is_kept else "fragment")
        return table, refresh_history.read(store, one.name, failures.until_success())
    snapshot = formats.view_head(store, one.name)
    history = refresh_history.read(store, one.name, phase_history.last_staleness)
    if snapshot is None:
        return Status(one.name, kind="view"), history
    record = snapshot.record
    table = Status(
        name=one.name,
        version=snapshot.version,
        rows_total=snapshot.rows,
        as_of=record.as_of,
        checked_at=record.checked_at,
        published_at=record.published_at,
        consistency=record.consistency,
        proof=record.proof,
        files=len(snapshot.files),
        bytes=sum(f.size for f in snapshot.files),
        kind="view",
        inputs=dict(record.inputs or {}),
        other=None if snapshot.other is None else snapshot.other.text,
        staleness=next((dict(s) for _, s in phase_history.staleness(history)), None),
    )
    return table, history


def status_of(store: Store, name: str) -> Status:
    """Return the published state of a fragment. Raises WarehouseUnavailable."""
    snapshot = formats.head(store, name)
    if snapshot is None:
        return Status(name)
    record = snapshot.record
    notes = Notes.read(store, name)
    comparison, security = notes.comparison(snapshot), notes.policies(snapshot)
    interval = interval_s(snapshot, formats.oldest(store, name) if snapshot.version else None)
    recipe = snapshot.layout.recipe
    is_total, marking = comparison.proof == "total", notes.marking(snapshot)
    probability = miss_probability(record.rows_changed, recipe) if is_total else None
    return Status(
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
        files=len(snapshot.files),
        bytes=sum(f.size for f in snapshot.files),
        row_security=None if security is None else security.hides,
        audit=None if marking.audit is None else marking.audit.to_json(),
        marker_warnings=list(marking.warnings) or None,
        part=notes.part_left(snapshot),
        other=None if snapshot.other is None else snapshot.other.text,
        damaged=sum(one.path in notes.damaged for one in snapshot.files) or None,
    )


def interval_s(newest: Snapshot, oldest: tuple[int, VersionRecord] | None) -> float:
    """Return the mean time between versions in seconds, at least 1."""
    if oldest is None or oldest[0] == newest.version:
        return INTERVAL_S
    first, last = (datetime.fromisoformat(r.published_at) for r in (oldest[1], newest.record))
    return max((last - first).total_seconds() / (newest.version - oldest[0]), 1.0)


def history(config: WarehouseConfig, name: str, limit: int, *, as_json: bool) -> None:
    """Print the versions of a fragment or a view, newest first, and what failed after each."""
    store = Store.of(config)
    one = named(config, [name], False)[0]
    known = refresh_history.read(store, one.name)
    failed = failures.kept(known)
    look = published_view if isinstance(one, View) else published
    try:
        head = look(store, one.name)
    except NotFound:
        if not as_json:
            print("".join(f"{f.attempt}\n" for f in failed[:limit]), end="")
        raise
    entries = formats.entries(store, one.name, head)
    ours = [(e.version, e.record) for e in entries if e.record]
    member = _members(store).get(one.name)
    moved = {version: dict(staleness) for version, staleness in phase_history.staleness(known)}
    for version, record in ours[:limit]:
        # Both are in UTC, to the second.
        later = [f for f in failed if f.at is not None and f.at >= record.published_at]
        failed = failed[len(later) :]
        if as_json:
            body = {k: v for k, v in record.body.items() if k not in _OURS}
            body |= {k: v for k, v in (record.report or {}).items() if k in _BRAKES}
            body |= {"failed": [f.to_json() for f in later]}
            print(json.dumps(body | ({"staleness": moved.get(version)} if moved else {})))
            continue
        print("".join(f"{f.attempt}\n" for f in later), end="")
        is_given = member is not None and member.version == version != ours[0][0]
        told = _stale(Status(one.name, staleness=moved.get(version)))
        print(
            f"version {version}: {record.published_at}, {counted(record.rows, 'row')}, "
            f"+{record.rows_inserted:,} ~{record.rows_updated:,} -{record.rows_deleted:,}, "
            f"{record.consistency}, {record.proof}, as of {record.as_of}"
            f"{f', {told}' if told else ''}{_held_back(record)}"
            f"{', which readers are given' if is_given else ''}"
        )
    if known.folded.by and not as_json:
        print(known.folded.text)


def _held_back(record: VersionRecord) -> str:
    """Return for how long the source held the refresh of a version back, if it did; else empty."""
    held_s = (record.report or {}).get("held_back_s")
    is_told = isinstance(held_s, int | float) and held_s >= HELD_BACK_SHOWN_S
    return f", held back for {held_s:,.1f} s" if is_told else ""

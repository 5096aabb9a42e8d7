"""`status` and `history`: print published versions, how fresh they are and how they were proven."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driftline import text_tables
from driftline.errors import DriftlineError, WarehouseUnavailable, named
from driftline.text_tables import has_colour

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history import alarms
from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.history.notes import UncomparedNote
from warehouse_agent.inspection.published_state import (
    PublishedState,
    RefreshTotals,
    full_disk,
    history_of,
    reading,
)
from warehouse_agent.inspection.state_words import (
    NOTHING_PUBLISHED,
    proof_text,
    staged_text,
    state_text,
    urgency,
    urgent_first,
)
from warehouse_agent.report import age, counted, is_held_back_for_long, span
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.storage.staged_files import StagedRows
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import VersionRecord
from warehouse_agent.timetable.probe import ProbeAnswer
from warehouse_agent.views.selection import chosen as chosen_of

if TYPE_CHECKING:
    from warehouse_agent.scheduler.probes import ProbedChange

ALARMS_SHOWN = 5  # in the first line of `--check`
NAMED_MAX = 5  # tables below the table
IS_RUNNING = "does `driftline run` or a timer still run?"
# Fields of a version for Driftline alone.
_OURS = ("layout", "clock", "changes_files", "report", "total")
HEADINGS = ("table", "version", "rows", "as of", "proof", "state")
_COLOURS = {"ok": "green", "warning": "yellow", "critical": "red", "unknown": "cyan"}
_BRAKES = ("held_back_s", "snapshot_s")  # of the report of a version
_NUMBERS = ("version", "rows")


def status(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    *,
    ask: bool,
    as_json: bool,
    check: bool = False,
    totals: bool = False,
    verbose: bool = False,
) -> list[int]:
    """Print the published state of each fragment and view, as a table or as JSON.

    Args:
        verbose: also print remarks below the table, and of what failed why and what to do; always
            of a table alone.
        ask: ask the sources of the fragments whether anything changed.
        check: print what needs a look instead of the table, the state of all first, and end the
            process with the exit code of that state, as monitoring reads them.
        totals: also print the totals of all refreshes.
    """
    shown, now = list[PublishedState](), datetime.now(UTC)
    details = verbose or len(chosen) == 1
    read = reading(config, chosen, now, ask=ask, totals=totals, recovered=details and not check)
    with read as state:

        def one(fragment: Fragment | View) -> None:
            table = state(fragment)
            if as_json:
                print(json_of(table), flush=True)
            shown.append(table)

        codes = each(chosen, one, as_json=as_json, command="status")
    if check:
        unread = [one.name for one, code in zip(chosen, codes, strict=True) if code]
        worst, lines = checked_text(shown, unread, now, full_disk(config))
        if not as_json:
            print("\n".join(lines))
        sys.exit(worst.value)
    if shown and not as_json:
        lines = table_of(shown, now, shutil.get_terminal_size().columns, has_colour())
        if details:
            lines += remarks_on(shown, now)
            lines += _tried_next(config, chosen, shown, now)
        else:
            lines += asked_text(shown)
            lines += summary_of(shown, now)
        print("\n".join(lines))
    return codes


def json_of(table: PublishedState) -> str:
    """Return what is known of a table as one line of JSON; `text` of its activity is for people."""
    body = asdict(table)
    if table.state is not None:
        body["state"] = table.state.word
    if (activity := table.activity) is not None:
        body["activity"] = {
            "state": activity.probe.answer.value,
            "rows": activity.probe.rows,
            "why": activity.probe.why or None,
            "text": activity_text(activity),
        }
    return json.dumps(body)


def activity_text(activity: ProbedChange) -> str:
    """Return in words what a source says of the changes since a published version."""
    probe = activity.probe
    if probe.answer is ProbeAnswer.UNCHANGED:
        return f"unchanged since version {activity.version}"
    if probe.answer is ProbeAnswer.CHANGED:
        about = "" if probe.rows is None else f"about {counted(int(probe.rows), 'row')} "
        return f"{about}changed since version {activity.version}"
    return f"not known: {probe.why}"


def checked_text(
    shown: Sequence[PublishedState],
    unread: Sequence[str],
    now: datetime,
    no_room: WarehouseUnavailable | None = None,
) -> tuple[MonitoringState, list[str]]:
    """Return the state of all tables, and it in words: one line, then what to do.

    Args:
        unread: names of tables whose state cannot be read, which has been said.
        now: with a time zone.
        no_room: why the next refresh may find no room; no history can say so.
    """
    states = [s.state or MonitoringState.OK for s in shown]
    states += [MonitoringState.CRITICAL] if no_room else []
    state = alarms.worst([*states, *(MonitoringState.UNKNOWN for _ in unread)])
    said = [no_room.message] if no_room else []
    said += [f"{s.name}: {'; '.join(s.alarms)}" for s in shown if s.alarms]
    said += [f"{name}: its state cannot be read" for name in unread]
    first = f"{state.name}: {counted(len(shown) + len(unread), 'table')}"
    if said:
        more = f" and {len(said) - ALARMS_SHOWN} more" if len(said) > ALARMS_SHOWN else ""
        first = f"{first}, {len(said)} to look at: {', '.join(said[:ALARMS_SHOWN])}{more}"
    # Monitoring takes what follows a bar for numbers.
    return state, [first.replace("|", "/"), *(x for s in shown for x in _failed(s, now))]


def table_of(
    shown: Sequence[PublishedState], now: datetime, width: int, colours: bool = False
) -> list[str]:
    """Return a line for each table under HEADINGS, the most urgent first, names shortened in the
    middle if need be.

    Args:
        now: with a time zone.
        width: characters in a line.
        colours: mark the states by colours of a terminal.
    """
    tables = urgent_first(shown)
    rows = [_cells(table, now) for table in tables]
    marked = [_COLOURS[urgency(table)] for table in tables] if colours else []
    # The code of an error is what is looked for.
    codes = max((len(row[-1]) for t, row in zip(tables, rows, strict=True) if t.failed), default=0)
    return text_tables.table(
        HEADINGS, rows, width, numbers=_NUMBERS, colours=marked, last_min=codes
    )


def summary_of(shown: Sequence[PublishedState], now: datetime) -> list[str]:
    """Return how many tables need a look, and what says why and what to do, kind by kind."""
    wrong = [table for table in urgent_first(shown) if table.alarms]
    if not wrong:
        return []
    verb = "needs" if len(wrong) == 1 else "need"
    lines = [f"{len(wrong)} of {counted(len(shown), 'table')} {verb} a look. Why, and what to do:"]
    failed = dict[str, list[PublishedState]]()
    for one in wrong:
        if one.failed is not None:
            failed.setdefault(one.failed.code, []).append(one)
    for code, like in failed.items():
        late_too = sum(one.late_s is not None for one in like)
        also = f", {late_too:,} late" if late_too else ""
        first = f"driftline status {like[0].name}"
        lines.append(f"  {len(like):,} failed{also}: {named(code)}: {first}")
    if new := [one.name for one in wrong if one.failed is None and one.version is None]:
        lines.append(f"  {len(new):,} never loaded: driftline refresh {_some(new)}")
    if late := [one for one in wrong if one.failed is None and one.late_s is not None]:
        tried = max(one.tried_at or "" for one in late)  # in UTC, to the second
        lines.append(f"  {len(late):,} late, last tried {age(tried, now)}: {IS_RUNNING}")
    return [*lines, "  all: driftline status --verbose"]


def _some(names: Sequence[str]) -> str:
    """Return the first names of tables, and how many more there are."""
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return f"{' '.join(names[:NAMED_MAX])}{more}"


def remarks_on(shown: Sequence[PublishedState], now: datetime) -> list[str]:
    """Return remarks on tables as lines: what failed, why and what to do, and what to know.

    Args:
        now: with a time zone.
    """
    shown = urgent_first(shown)
    lines = [
        f"{s.name}: {_load(s, s.staged, now)}" for s in shown if s.staged and s.version is None
    ]
    lines += [line for status in shown for line in _failed(status, now)]
    lines += [
        f"{s.name}: {one.times:,}× failed, then well again; the last {age(one.at, now)}:"
        f" {one.code}: {one.where}: {one.message}"
        for s in shown
        for one in s.recovered or ()
    ]
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
    lines += [
        f"{s.name} was {told} when it last moved" for s in shown if (told := _stale(s.staleness))
    ]
    lines += asked_text(shown)
    sure = [status for status in shown if status.miss_probability is not None]
    if sure:
        worst = max(sure, key=lambda status: status.miss_probability or 0.0)
        lines.append(
            f"probability of a missed change: {'at most ' if len(sure) > 1 else ''}"
            f"{worst.miss_probability:.0e} per refresh"
        )
    return lines + _limits(shown)


def _tried_next(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    shown: Sequence[PublishedState],
    now: datetime,
) -> list[str]:
    """Return when tables that failed or are late are refreshed next, as lines; nothing of those of
    which nothing can be decided."""
    wrong = {s.name for s in shown if s.failed is not None or s.late_s is not None}
    if not wrong:
        return []
    # Models of change, which a table that is well needs for nothing.
    from warehouse_agent.cli.schedule import next_text
    from warehouse_agent.scheduler.due import scheduled

    store, lines = Store.of(config), list[str]()
    for one in chosen:
        if isinstance(one, Fragment) and one.name in wrong:
            with contextlib.suppress(DriftlineError):
                entry = scheduled(config, store, one, now.timestamp(), None, expects=False)
                lines.append(f"{one.name}: next: {next_text(entry.decision, now)}")
    return lines


def _limits(shown: Sequence[PublishedState]) -> list[str]:
    """Return whose clock tells how fresh tables are, and when they would be late, as lines."""
    lines = []
    if len(shown) == 1 and shown[0].version is not None:
        lines.append(f"{shown[0].name}: as of {shown[0].as_of}, by the clock of its source")
    limits = dict[float, list[str]]()
    for one in shown:
        if one.late_after_s is not None and one.version is not None:
            limits.setdefault(one.late_after_s, []).append(one.name)
    return lines + [
        f"late {span(after)} after the last refresh that went well: {_some(names)}"
        for after, names in sorted(limits.items())
    ]


def asked_text(shown: Sequence[PublishedState]) -> list[str]:
    """Return what was asked for beside the table, as lines: activity and totals."""
    lines = [f"{s.name}: {activity_text(s.activity)}" for s in shown if s.activity]
    totals = [(s.name, s.totals) for s in shown if s.totals]
    if len(totals) > 1:
        totals.insert(0, (f"all {len(totals)}", RefreshTotals.of_all([one for _, one in totals])))
    return lines + [f"{name}: {one.text}" for name, one in totals]


def _cells(table: PublishedState, now: datetime) -> tuple[str, ...]:
    """Return a row of the table, under HEADINGS."""
    if table.version is None:
        return (table.name, "", "", "", "", state_text(table))
    assert table.rows_total is not None
    proof = proof_text(table.proof, table.consistency)
    version, rows = str(table.version), f"{table.rows_total:,}"
    return (table.name, version, rows, age(table.as_of, now), proof, state_text(table))


def _load(table: PublishedState, staged: StagedRows, now: datetime) -> str:
    """Return how far the first load of a table is, in words."""
    failed_at = None if table.failed is None else table.failed.at
    tried = age(max(staged.at, failed_at or ""), now)  # both are in UTC, to the second
    return f"first load, {staged_text(staged)} staged, last tried {tried}"


def _failed(status: PublishedState, now: datetime) -> list[str]:
    """Return which refreshes of a table failed, why, and what to do, as lines; and what else needs
    a look, or waits for its source."""
    lines = []
    if status.failed is not None:
        lines += status.failed.lines(status.name, now)
    if status.damaged:
        files = counted(status.damaged, "data file")
        lines.append(f"{status.name}: {files} damaged; the next refresh pulls the rows again")
    if status.failed is None and status.version is None and status.staged is None:
        lines.append(f"{status.name}: {NOTHING_PUBLISHED}; driftline refresh {status.name}")
    if status.late_s is not None:
        late = alarms.late_text(status.late_s, status.late_after_s or 0.0)
        tried = f", last tried {age(status.tried_at, now)}; {IS_RUNNING}"
        lines.append(f"{status.name}: {late}{tried if status.failed is None else ''}")
    if status.put_off_until is not None:
        lines.append(f"{status.name}: its source reads nothing before {status.put_off_until}")
    return lines


def _audit(status: PublishedState, now: datetime) -> list[str]:
    """Return what is wrong with a marker, and what its last audit found, as lines."""
    lines = [f"{status.name}: {warning}" for warning in status.marker_warnings or ()]
    if (audit := status.audit) is None:
        return lines
    if status.proof == "keys":
        lines.append(
            f"{status.name}: all keys were compared, updated rows are those of its marker; all rows"
            f" were compared {age(audit.at, now)}"
        )
    if status.proof == "claimed":
        lines.append(f"{status.name}: claimed by its marker, nothing was compared since {audit.at}")
    if audit.missed:
        about = "about " if audit.is_sample else ""
        lines.append(
            f"{status.name}: the marker missed {about}{audit.missed:,} of"
            f" {counted(audit.changes, 'change')} since {(audit.since or '')[:10]}"
            f"{f' ({keys})' if (keys := ', '.join(audit.keys)) else ''}"
        )
        if audit.wrong_since is not None:
            lines.append(f"{status.name}: versions since {audit.wrong_since} may be wrong")
    return lines


def _part_line(name: str, part: UncomparedNote) -> str:
    """Return what the last refresh of a fragment left, and why."""
    said = f"{name}: the last refresh left {counted(part.rows_left, 'row')}"
    if part.updates_left is not None:
        said += f", of which {part.updates_left:,.1f} are expected to have been updated"
    return f"{said}; the source allowed {part.allowed}" if part.allowed else said


def _waiting(status: PublishedState, now: datetime) -> str:
    """Return what waits for the views over a fragment."""
    if status.ahead is None:
        return ""
    rows, since = counted(status.ahead.rows, "changed row"), status.ahead.since
    verb = "waits" if status.ahead.rows == 1 else "wait"
    return f": {rows} {verb}, the oldest since {age(since, now).removesuffix(' ago')}"


def _stale(body: Mapping[str, Any] | None) -> str:
    """Return the staleness of a view in words; nothing if it is not known."""
    if not body or body.get("vs_s") is None:
        return ""
    return (
        f"{body['vs_s']:,.1f} s stale (S1 {body['s1_s']:,.1f} s, S2 {body['s2_s']:,.1f} s, "
        f"average of {counted(body['rows'], 'changed row')})"
    )


def history(config: WarehouseConfig, name: str, limit: int, *, as_json: bool) -> None:
    """Print the versions of a fragment or a view, newest first, and what failed after each."""
    one = chosen_of(config, [name], False)[0]
    known = history_of(Store.of(config), one)
    if known.missing is not None:
        if not as_json:
            print("".join(f"{f.attempt}\n" for f in known.failed[:limit]), end="")
        raise known.missing
    for shown in known.versions[:limit]:
        record = shown.record
        if as_json:
            body = {k: v for k, v in record.body.items() if k not in _OURS}
            body |= {k: v for k, v in (record.report or {}).items() if k in _BRAKES}
            body |= {"failed": [asdict(f) for f in shown.failed], "requests": shown.requests}
            print(json.dumps(body | ({"staleness": shown.staleness} if known.is_moved else {})))
            continue
        print("".join(f"{f.attempt}\n" for f in shown.failed), end="")
        told = _stale(shown.staleness)
        print(
            f"version {shown.version}: {record.published_at}, {counted(record.rows, 'row')}, "
            f"{record.rows_inserted:,} inserted, {record.rows_updated:,} updated, "
            f"{record.rows_deleted:,} deleted, "
            f"proof: {proof_text(record.proof, record.consistency)}, as of {record.as_of}"
            f"{f', {told}' if told else ''}{_held_back(record)}"
            f"{', which readers are given' if shown.is_given else ''}"
        )
    if known.folded.by and not as_json:
        print(known.folded.text)


def _held_back(record: VersionRecord) -> str:
    """Return for how long the source held the refresh of a version back, if it did; else empty."""
    held_s = (record.report or {}).get("held_back_s")
    is_told = isinstance(held_s, int | float) and is_held_back_for_long(held_s)
    return f", held back for {held_s:,.1f} s" if is_told else ""

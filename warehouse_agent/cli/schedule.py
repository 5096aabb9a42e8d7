"""`schedule`, `refresh --due` and `run`: print what is due, why, and when the rest will be."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.report import age, counted, say_error, utc_at
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.scheduler.configuration import LoopError
from warehouse_agent.scheduler.due import (
    FragmentDecision,
    SelectionDecision,
    answers,
    scheduled,
)
from warehouse_agent.storage.store import Store
from warehouse_agent.timetable.decision import NEVER, Decision
from warehouse_agent.views.selection import TableSelection

NAMES_SHOWN = 20  # of fragments that are never due


def schedule(
    config: WarehouseConfig, chosen: TableSelection, now: datetime, *, ask: bool, as_json: bool
) -> list[int]:
    """Print the decision about each fragment; with `ask`, ask the sources what changed."""
    store = Store.of(config)
    said = answers(config, chosen.fragments) if ask else {}

    def one(fragment: Fragment) -> None:
        entry = scheduled(config, store, fragment, now.timestamp(), said.get(fragment.name))
        print(json_of(entry) if as_json else text_of(entry, now), flush=True)

    return each(chosen.fragments, one, as_json=as_json, command="schedule")


def say_due(decisions: SelectionDecision, file: str, now: datetime) -> list[int]:
    """Print on stderr what a person has to know of what is not due; return the exit codes of
    fragments that would be, had they not failed a short while ago.

    If nothing is due, it is the next moment. It is which fragments failed and are not tried again
    yet: what starts this command has to see that they still fail. It is the names of fragments
    that are never due: who forgot a goal would else believe that they are refreshed.
    """
    for error in decisions.errors:
        say_error(error)
    if said := never_due(decisions.never_due, file):
        print(said, file=sys.stderr)
    held = decisions.held
    for one in held:
        print(f"Still fails: {text_of(one, now)}", file=sys.stderr)
    later = [one for one in decisions.later if one.decision.at != NEVER]
    if later and not decisions.due + decisions.undecided:
        first = min(later, key=lambda one: one.decision.at)
        if first not in held:
            print(f"Nothing is due. Next: {text_of(first, now)}", file=sys.stderr)
    return [one.held.exit_code for one in held if one.held is not None]


class LoopPrinter:
    """Listener of `scheduler.loop` that prints on stderr; what is never due, when that changes."""

    def __init__(self, file: str) -> None:
        """`file`: the name of the configuration."""
        self._file, self._never_due = file, ""

    def __call__(self, event: SelectionDecision | LoopError) -> None:
        """Print an event."""
        if isinstance(event, LoopError):
            say_error(event.error)
            if event.is_former_kept:
                print("The configuration that was read before still counts.", file=sys.stderr)
            return
        for error in event.errors:
            say_error(error)
        if (said := never_due(event.never_due, self._file)) != self._never_due:
            print(said or "Every table is due at some time now.", file=sys.stderr, flush=True)
            self._never_due = said


def never_due(names: Sequence[str], file: str) -> str:
    """Return which fragments are never due, and what to do, in words; empty: none."""
    if not names:
        return ""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (
        f"Never due: {', '.join(names[:NAMES_SHOWN])}{more}. {file} gives no goal and no"
        " `interval_max`: write one of them, or refresh by name, without `--due`."
    )


def json_of(entry: FragmentDecision) -> str:
    """Return a decision as one JSON object; `at` is ISO 8601 in UTC, null if it is never due."""
    at = None if entry.decision.at == NEVER else utc_at(entry.decision.at)
    body = asdict(entry.decision) | {"at": at}
    more = {"intervals_dropped": entry.dropped, "event_time_not_used": entry.unread or None}
    return json.dumps({"name": entry.name, **body, **more})


def next_text(decision: Decision, now: datetime) -> str:
    """Return when a fragment is refreshed next, in words."""
    if decision.at == NEVER:
        return "never due"
    at = utc_at(decision.at)
    return "due now" if decision.due else f"not before {at} ({age(at, now)})"


def text_of(entry: FragmentDecision, now: datetime) -> str:
    """Return a decision as a line for people."""
    decision = entry.decision
    if decision.at == NEVER:
        return f"{entry.name}: never due: {decision.why}"
    when = next_text(decision, now)
    by = "" if decision.by == entry.name else f", for {decision.by}"
    unread = f"; `event_time` is not used: {entry.unread}" if entry.unread else ""
    dropped = _dropped(entry.dropped)
    return f"{entry.name}: {when}: {decision.why}{by}{_expected(decision)}{dropped}{unread}"


def _dropped(intervals: int) -> str:
    if not intervals:
        return ""
    verb = "was" if intervals == 1 else "were"
    return (
        f"; {counted(intervals, 'interval')} {verb} dropped, because the clock of the source"
        " was set"
    )


def _expected(decision: Decision) -> str:
    """Return in words what is expected of a refresh at the decided moment, or why nothing is."""
    if decision.untold:
        return f"; {decision.untold}"
    if decision.rows is None or decision.row_hours is None or decision.stale_hours is None:
        return ""
    sent = "" if decision.bytes is None else f", {decision.bytes:,.0f} bytes"
    return (
        f"; expected until then: {decision.rows:,.1f} changed rows,"
        f" {decision.row_hours:,.1f} row-hours, {decision.stale_hours:,.1f} stale hours{sent}"
    )

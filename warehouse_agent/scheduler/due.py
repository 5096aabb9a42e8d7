"""`schedule`: what is due, why, and when the rest will be; `refresh --due` refreshes that."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from driftline.errors import ConfigurationError, WarehouseUnavailable

from warehouse_agent.change_models.memory import LearnedMemories, Memory
from warehouse_agent.components import phase_history
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history import change_memory
from warehouse_agent.history.refresh_history import read, refreshes
from warehouse_agent.report import age, counted, utc_at
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.timetable.decision import NEVER, Circumstances, Decision, decide
from warehouse_agent.timetable.probe import ProbeResult
from warehouse_agent.timetable.retry import FailureStreak
from warehouse_agent.views import component_graph
from warehouse_agent.views.inputs import inputs_of
from warehouse_agent.views.selection import TableSelection, select
from warehouse_agent.views.timings import timings_of

NAMES_SHOWN = 20  # of fragments that are never due


@dataclass(frozen=True, slots=True)
class FragmentDecision:
    """The decision about one fragment.

    Attributes:
        dropped: intervals that a wrong clock made useless.
        unread: why the times that `event_time` names are not used; empty: they are, or none are.
        held: it would be due now, had it not failed; None: it would not, or has not.
        refresh_s: that a refresh of it is expected to take, without views; 0: not known.
    """

    name: str
    decision: Decision
    dropped: int = 0
    unread: str = ""
    held: FailureStreak | None = None
    refresh_s: float = 0.0

    def to_json(self) -> str:
        """Return it as one JSON object; `at` is ISO 8601 in UTC, null if it is never due."""
        at = None if self.decision.at == NEVER else utc_at(self.decision.at)
        body = asdict(self.decision) | {"at": at}
        more = {"intervals_dropped": self.dropped, "event_time_not_used": self.unread or None}
        return json.dumps({"name": self.name, **body, **more})

    def text(self, now: datetime) -> str:
        """Return it as a line for people."""
        if (decision := self.decision).at == NEVER:
            return f"{self.name}: never due: {decision.why}"
        at = utc_at(decision.at)
        when = "due now" if decision.due else f"not before {at} ({age(at, now)})"
        by = "" if decision.by == self.name else f", for {decision.by}"
        unread = f"; `event_time` is not used: {self.unread}" if self.unread else ""
        return (
            f"{self.name}: {when}: {decision.why}{by}{_expected(decision)}{self._dropped()}{unread}"
        )

    def _dropped(self) -> str:
        if not self.dropped:
            return ""
        verb = "was" if self.dropped == 1 else "were"
        return (
            f"; {counted(self.dropped, 'interval')} {verb} dropped, because the clock of the source"
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


def probes(
    config: WarehouseConfig, store: Store, fragments: Sequence[Fragment]
) -> Mapping[str, ProbeResult]:
    """Ask the sources what changed, without a scan, where a timing makes use of it.

    Nothing is known of fragments whose published state cannot be read.
    """
    chosen = [
        fragment
        for fragment in fragments
        if any(timing.listens for timing in timings_of(config, fragment))
    ]
    if not chosen:
        return {}
    from warehouse_agent.scheduler.probes import probed  # gRPC, where a source is asked

    with contextlib.suppress(WarehouseUnavailable):
        return {name: probe for name, (probe, _) in probed(store, chosen).items()}
    return {}


def scheduled(
    config: WarehouseConfig,
    store: Store,
    fragment: Fragment,
    now: float,
    probe: ProbeResult | None,
    *,
    expects: bool = True,
    learned: LearnedMemories | None = None,
) -> FragmentDecision:
    """Return the decision about a fragment.

    Args:
        now: seconds since 1970.
        probe: what its source says; None: it was not asked.
        expects: also say what is expected to be unseen until then.
        learned: what a loop fits its models to; None: all that is remembered.

    Raises:
        WarehouseUnavailable: what is published, or its history, cannot be read.
    """
    published = formats.head(store, fragment.name)
    history = read(store, fragment.name, refreshes(change_memory.LATEST)).with_newest(published)
    memory = change_memory.remembered(store, fragment.name, fragment.time_zone, history)
    refresh_s, sent = change_memory.habits(history)
    duration_s = refresh_s + _phase_s(config, store, fragment.name, memory)
    taken, claims, unread = None if published is None else memory.taken, None, ""
    if taken is not None and (last := memory.last) is not None:
        from warehouse_agent.scheduler.claimed_times import (
            claims_of,  # Arrow, where one is published
        )

        try:
            claims = claims_of(store, fragment, last)
        except ConfigurationError as error:  # the counts of refreshes decide
            unread = error.message
    given = Circumstances(
        last=taken,
        behind_s=memory.behind_s,
        probe=probe or ProbeResult(),
        allowed=fragment.source.refresh_hours,
        zone=fragment.source.time_zone,
        duration_s=duration_s,
        bytes=sent,
        closed_until=history.put_off_until,
        failed=history.failed,
        claims=claims,
    )
    fitted = memory if learned is None else learned.of(fragment.name, memory)
    timings = timings_of(config, fragment)
    decision = decide(fitted, timings, given, now, expects=expects)
    held = None if decision.due else given.failed
    if held and not decide(fitted, timings, replace(given, failed=None), now, expects=False).due:
        held = None
    return FragmentDecision(fragment.name, decision, memory.dropped, unread, held, refresh_s)


def _phase_s(config: WarehouseConfig, store: Store, name: str, memory: Memory) -> float:
    """Return the seconds that the views over a fragment are expected to take: readers see a change
    when these have moved, too. 0 without views, or if nothing is known of their phases."""
    over = component_graph.above([name], inputs_of(config.views))
    views = (read(store, view, phase_history.last_phases()) for view in sorted(over))
    if (phase := phase_history.cost(views)) is None:
        return 0.0
    rows = statistics.median(one.changed for one in memory.recent) if memory.recent else 0.0
    return phase.seconds(rows)


def schedule(
    config: WarehouseConfig, chosen: TableSelection, now: datetime, *, ask: bool, as_json: bool
) -> list[int]:
    """Print the decision about each fragment; with `ask`, ask the sources what changed."""
    store = Store.of(config)
    said = probes(config, store, chosen.fragments) if ask else {}

    def one(fragment: Fragment) -> None:
        entry = scheduled(config, store, fragment, now.timestamp(), said.get(fragment.name))
        print(entry.to_json() if as_json else entry.text(now), flush=True)

    return each(chosen.fragments, one, as_json=as_json, command="schedule")


@dataclass(frozen=True, slots=True)
class SelectionDecision:
    """The result of one look at a selection.

    Attributes:
        due: names of fragments that are due now.
        undecided: names of those of which nothing can be decided, which has been said. They are
            refreshed with the others, because a refresh says more of what is wrong.
        later: the decisions about the others.
    """

    due: list[str]
    undecided: list[str]
    later: list[FragmentDecision]


def look(
    config: WarehouseConfig,
    chosen: TableSelection,
    now: datetime,
    learned: LearnedMemories | None = None,
) -> SelectionDecision:
    """Return which fragments of a selection are due now, after asking the sources.

    learned: as in `scheduled`.
    """
    store = Store.of(config)
    said = probes(config, store, chosen.fragments)
    names: list[str] = []
    later: list[FragmentDecision] = []

    def one(fragment: Fragment) -> None:
        probe = said.get(fragment.name)
        entry = scheduled(
            config, store, fragment, now.timestamp(), probe, expects=False, learned=learned
        )
        if entry.decision.due:
            names.append(entry.name)
        else:
            later.append(entry)

    codes = each(chosen.fragments, one, as_json=False, command="schedule")
    undecided = [f.name for f, code in zip(chosen.fragments, codes, strict=True) if code]
    return SelectionDecision(names, undecided, later)


def gains(
    config: WarehouseConfig,
    names: Sequence[str],
    now: float,
    learned: LearnedMemories | None = None,
) -> Mapping[str, float]:
    """Return what a second of the refresh of each fragment is expected to save, in row-hours; the
    fragments of which nothing is expected are left out.

    learned: as in `scheduled`.
    """
    store, by_name = Store.of(config), dict[str, float]()
    for name in names if len(names) > 1 else ():
        with contextlib.suppress(Exception):  # `look` said it; here only the order is at stake
            one = scheduled(config, store, config.fragments[name], now, None, learned=learned)
            if one.decision.row_hours is not None and one.refresh_s > 0:
                by_name[name] = one.decision.row_hours / one.refresh_s
    return by_name


def due(
    config: WarehouseConfig, chosen: TableSelection, without: Sequence[str], now: datetime
) -> tuple[TableSelection, list[int]]:
    """Return what of a selection is due now, and the exit codes of fragments that would be, had
    they not failed a short while ago.

    If nothing is due, the next moment is printed on stderr. So are fragments that failed and are
    not tried again yet: what starts this command has to see that they still fail. So are the names
    of fragments that are never due: who forgot a goal would else believe that they are refreshed.

    Returns:
        Fragments, and the views that move with them; the exit codes, each of one fragment.
    """
    decisions = look(config, chosen, now)
    if said := never_due(decisions, config.file.name):
        print(said, file=sys.stderr)
    held = [one for one in decisions.later if one.held is not None]
    for one in held:
        print(f"Still fails: {one.text(now)}", file=sys.stderr)
    codes = [one.held.exit_code for one in held if one.held is not None]
    if names := decisions.due + decisions.undecided:
        return select(config, names, False, without), codes
    if later := [one for one in decisions.later if one.decision.at != NEVER]:
        first = min(later, key=lambda one: one.decision.at)
        if first not in held:
            print(f"Nothing is due. Next: {first.text(now)}", file=sys.stderr)
    return TableSelection(()), codes


def never_due(decisions: SelectionDecision, file: str) -> str:
    """Return which fragments are never due, and what to do, in words; empty: none."""
    names = [one.name for one in decisions.later if one.decision.at == NEVER]
    if not names:
        return ""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (
        f"Never due: {', '.join(names[:NAMES_SHOWN])}{more}. {file} gives no goal and no"
        " `interval_max`: write one of them, or refresh by name, without `--due`."
    )

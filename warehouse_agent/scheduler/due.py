"""Decide what is due, why, and when the rest will be: for `schedule`, `refresh --due` and `run`."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, DriftlineError

from warehouse_agent.change_models.memory import LearnedMemories, Memory
from warehouse_agent.components import phase_history
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history import change_memory
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import (
    RefreshHistory,
    earlier_refreshes,
    read,
    refreshes,
)
from warehouse_agent.runs.each_fragment import each
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Version
from warehouse_agent.timetable.decision import NEVER, Circumstances, Decision, decide
from warehouse_agent.timetable.probe import ProbeResult
from warehouse_agent.timetable.retry import FailureStreak
from warehouse_agent.views import component_graph
from warehouse_agent.views.inputs import inputs_of
from warehouse_agent.views.selection import TableSelection, select
from warehouse_agent.views.timings import timings_of

if TYPE_CHECKING:
    from warehouse_agent.scheduler.probes import SourceAnswer


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


def answers(config: WarehouseConfig, fragments: Sequence[Fragment]) -> Mapping[str, SourceAnswer]:
    """Ask the sources what changed, without a scan, where a timing makes use of it; return what
    each said, by fragment."""
    chosen = [
        fragment
        for fragment in fragments
        if any(timing.listens for timing in timings_of(config, fragment))
    ]
    if not chosen:
        return {}
    from warehouse_agent.scheduler.probes import asked  # gRPC, where a source is asked

    return asked(chosen)


def scheduled(
    config: WarehouseConfig,
    store: Store,
    fragment: Fragment,
    now: float,
    said: SourceAnswer | None,
    *,
    expects: bool = True,
    learned: LearnedMemories | None = None,
) -> FragmentDecision:
    """Return the decision about a fragment.

    Args:
        now: seconds since 1970.
        said: by its source; None: it was not asked.
        expects: also say what is expected to be unseen until then.
        learned: what a loop fits its models to; None: all that is remembered.

    Raises:
        WarehouseUnavailable: what is published, or its history, cannot be read.
    """
    published = formats.header(store, fragment.name)
    enough = refreshes(change_memory.LATEST) if said is None else earlier_refreshes(None)
    history = read(store, fragment.name, enough)
    notes = Notes() if published is None else Notes.read(store, fragment.name)
    probe = ProbeResult() if said is None else _probe(published, notes, history, said)
    history = history.with_newest(published)
    memory = change_memory.remembered(store, fragment.name, fragment.time_zone, history)
    refresh_s, sent = change_memory.habits(history)
    duration_s = refresh_s + _phase_s(config, store, fragment.name, memory)
    taken, claims, unread = None if published is None else memory.taken, None, ""
    if taken is not None and (last := memory.last) is not None:
        from warehouse_agent.scheduler.claimed_times import (
            claims_of,  # Arrow, where one is published
        )

        try:
            claims = claims_of(store, fragment, last, notes)
        except ConfigurationError as error:  # the counts of refreshes decide
            unread = error.message
    given = Circumstances(
        last=taken,
        behind_s=memory.behind_s,
        probe=probe,
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


def _probe(
    published: Version | None, notes: Notes, history: RefreshHistory, said: SourceAnswer
) -> ProbeResult:
    """Return what a source says of the changes since the published version."""
    from warehouse_agent.scheduler.probes import change

    return change(published, notes, history, said).probe


def _phase_s(config: WarehouseConfig, store: Store, name: str, memory: Memory) -> float:
    """Return the seconds that the views over a fragment are expected to take: readers see a change
    when these have moved, too. 0 without views, or if nothing is known of their phases."""
    over = component_graph.above([name], inputs_of(config.views))
    views = (read(store, view, phase_history.last_phases()) for view in sorted(over))
    if (phase := phase_history.cost(views)) is None:
        return 0.0
    rows = statistics.median(one.changed for one in memory.recent) if memory.recent else 0.0
    return phase.seconds(rows)


@dataclass(frozen=True, slots=True)
class SelectionDecision:
    """The result of one look at a selection.

    Attributes:
        due: names of fragments that are due now.
        undecided: names of those of which nothing can be decided. They are refreshed with the
            others, because a refresh says more of what is wrong.
        later: the decisions about the others.
        errors: why nothing can be decided, one for each that is undecided.
    """

    due: list[str]
    undecided: list[str]
    later: list[FragmentDecision]
    errors: Sequence[DriftlineError] = ()

    @property
    def held(self) -> list[FragmentDecision]:
        """Return those that would be due, had they not failed a short while ago."""
        return [one for one in self.later if one.held is not None]

    @property
    def never_due(self) -> list[str]:
        """Return the names of fragments without a goal."""
        return [one.name for one in self.later if one.decision.at == NEVER]


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
    said = answers(config, chosen.fragments)
    names: list[str] = []
    later: list[FragmentDecision] = []
    errors: list[DriftlineError] = []

    def one(fragment: Fragment) -> None:
        answer = said.get(fragment.name)
        entry = scheduled(
            config, store, fragment, now.timestamp(), answer, expects=False, learned=learned
        )
        if entry.decision.due:
            names.append(entry.name)
        else:
            later.append(entry)

    codes = each(chosen.fragments, one, as_json=False, command="schedule", on_error=errors.append)
    undecided = [f.name for f, code in zip(chosen.fragments, codes, strict=True) if code]
    return SelectionDecision(names, undecided, later, errors)


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
        with contextlib.suppress(Exception):  # `look` met it, too; here only the order is at stake
            one = scheduled(config, store, config.fragments[name], now, None, learned=learned)
            if one.decision.row_hours is not None and one.refresh_s > 0:
                by_name[name] = one.decision.row_hours / one.refresh_s
    return by_name


def due(
    config: WarehouseConfig, chosen: TableSelection, without: Sequence[str], now: datetime
) -> tuple[TableSelection, SelectionDecision]:
    """Return what of a selection is due now: fragments, and the views that move with them; and the
    decisions about all."""
    decisions = look(config, chosen, now)
    names = decisions.due + decisions.undecided
    return select(config, names, False, without) if names else TableSelection(()), decisions

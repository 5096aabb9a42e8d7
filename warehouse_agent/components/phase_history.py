"""Records of earlier view phases and refreshes, from which the next phase is timed.

The line of a view in the history of refreshes has the view phases of its command: the changed rows
of the component, and the seconds. Lines of fragments say how often refreshes come, how many rows
they find changed, and how long they take. What is lost makes phases more frequent, never wrong.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warehouse_agent.components.staleness import PhaseCost, learned
from warehouse_agent.history.history_lines import HistoryLine, SuccessLine
from warehouse_agent.history.refresh_history import Enough, RefreshHistory, refreshes
from warehouse_agent.report import MovedViews

PHASES = 16  # of a component, from which the cost of the next one is learned
REFRESHES = 6  # of a fragment: five intervals between them


@dataclass(frozen=True, slots=True)
class RefreshHabit:
    """The last refreshes of a fragment, summarized.

    Attributes:
        interval_s: the longest time between two; None: there were no two.
        rows_per_s: changed rows by the seconds between refreshes.
        rows: changed rows of a refresh, the median.
        takes_s: seconds of a refresh, the median.
    """

    interval_s: float | None = None
    rows_per_s: float = 0.0
    rows: float = 0.0
    takes_s: float = 0.0


def last_phases() -> Enough:
    """Read until as many phases of a view as its cost is learned from."""
    seen = 0

    def enough(line: HistoryLine) -> bool:
        nonlocal seen
        if isinstance(line, SuccessLine):
            seen += sum(phase.rows is not None for phase in line.view_phases)
        return seen >= PHASES

    return enough


def last_refreshes() -> Enough:
    """Read until as many refreshes of a fragment as its habit is learned from, or its load."""
    return refreshes(REFRESHES)


def last_staleness(line: HistoryLine) -> bool:
    """Read until a view moved, and said how stale it was."""
    return isinstance(line, SuccessLine) and line.staleness is not None


def cost(views: Iterable[RefreshHistory]) -> PhaseCost | None:
    """Return the cost of a view phase of a component, learned from its views' histories."""
    moved: dict[MovedViews, None] = {}
    for view in views:
        phases = (phase for line in view.successes for phase in reversed(line.view_phases))
        counted = (phase for phase in phases if phase.rows is not None)
        moved |= dict.fromkeys(itertools.islice(counted, PHASES))
    newest = sorted(moved, key=lambda phase: phase.at, reverse=True)[:PHASES]
    return learned([(phase.rows or 0, phase.seconds) for phase in newest])


def staleness(view: RefreshHistory) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the versions of a view with the staleness with which each moved, the newest first."""
    for line in view.successes:
        if line.staleness is not None and line.version is not None:
            yield line.version, line.staleness


def habit(history: RefreshHistory, now: datetime) -> RefreshHabit:
    """Return what the last refreshes of a fragment were like, without its first load."""
    known = [
        (line.ended, line.rows.changed, line.spent.seconds, line.is_load)
        for line in history.since_load
        if line.ended is not None and line.rows is not None and line.spent.seconds is not None
    ]
    runs = known[:REFRESHES]
    at = [ended for ended, _, _, _ in runs]
    intervals = [(a - b).total_seconds() for a, b in itertools.pairwise([now, *at])]
    if len(runs) < 2 or min(intervals) < 0:
        return RefreshHabit()
    later = [one for one in runs if not one[3]]
    spent_s = sum(intervals[1:]) or 1.0
    return RefreshHabit(
        interval_s=max(intervals),
        rows_per_s=sum(rows for _, rows, _, _ in later) / spent_s,
        rows=statistics.median(rows for _, rows, _, _ in later),
        takes_s=statistics.median(seconds for _, _, seconds, _ in later),
    )

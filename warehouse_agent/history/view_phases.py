"""Records of earlier view phases and refreshes, from which the next phase is timed.

The line of a view in the history of runs has the view phases of its command: the changed rows of
the component, and the seconds. Lines of fragments say how often refreshes come, how many rows they
find changed, and how long they take. What is lost makes phases more frequent, never wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warehouse_agent.history.record import DAMAGED_LINE, amount, moment, succeeded
from warehouse_agent.planning.staleness.optimum import PhaseCost, learned
from warehouse_agent.storage.store import PRIVATE, Store

PHASES = 16  # of a component, from which the cost of the next one is learned
RUNS = 6  # of a fragment: five intervals between them


@dataclass(frozen=True, slots=True)
class Habit:
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


def cost(store: Store, views: Iterable[str]) -> PhaseCost | None:
    """Return the cost of a view phase of a component, learned from its views' histories."""
    found: dict[tuple[int, float, str], None] = {}
    for view in views:
        known = itertools.islice(_phases(store, view), PHASES)
        found |= dict.fromkeys(known)
    newest = sorted(found, key=lambda phase: phase[2], reverse=True)[:PHASES]
    return learned([(rows, seconds) for rows, seconds, _ in newest])


def _phases(store: Store, view: str) -> Iterator[tuple[int, float, str]]:
    """Yield changed rows, seconds and end of the view phases in a history, the newest first."""
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{view}.jsonl")):
        for one in reversed(body.get("view_phases") or ()):
            with contextlib.suppress(*DAMAGED_LINE):  # the rows of a first load are null
                yield int(amount(one["rows"])), float(amount(one["seconds"])), str(one["at"])


def staleness(store: Store, view: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the versions of a view with the staleness with which each moved, the newest first."""
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{view}.jsonl")):
        found, version = body.get("staleness"), body.get("version")
        if isinstance(found, dict) and isinstance(version, int):
            yield version, found


def habit(store: Store, name: str, now: datetime) -> Habit:
    """Return what the last refreshes of a fragment were like, without its first load."""
    lines = succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl"))
    found: list[tuple[datetime, int, float, bool]] = []
    for body in lines:
        with contextlib.suppress(*DAMAGED_LINE):
            found.append(_run(body))
            if len(found) == RUNS or found[-1][3]:
                break
    at = [run[0] for run in found]
    intervals = [(a - b).total_seconds() for a, b in itertools.pairwise([now, *at])]
    if len(found) < 2 or min(intervals) < 0:
        return Habit()
    later = [run for run in found if not run[3]]
    spent_s = sum(intervals[1:]) or 1.0
    return Habit(
        interval_s=max(intervals),
        rows_per_s=sum(rows for _, rows, _, _ in later) / spent_s,
        rows=statistics.median(rows for _, rows, _, _ in later),
        takes_s=statistics.median(seconds for _, _, seconds, _ in later),
    )


def _run(body: dict[str, Any]) -> tuple[datetime, int, float, bool]:
    """Return end, changed rows and seconds of a refresh, and True if it was a first load."""
    rows = sum(int(amount(body[f"rows_{what}"])) for what in ("inserted", "updated", "deleted"))
    seconds = sum(map(amount, body["seconds"].values()))
    at = body.get("proven_at") or body["checked_at"]  # to the millisecond, or to the second
    return moment(at), rows, seconds, body["previous_version"] is None

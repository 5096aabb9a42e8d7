"""A month of decisions in virtual time: many fragments on several sources, each with a window.

    python -m benchmarks.decisions.month [FRAGMENTS] [SOURCES] [DAYS]

Each fragment has a history of 400 refreshes and one of five timings. A source is asked each hour
what changed; it refreshes one fragment at a time. Every beginning of a refresh is decided anew, as
`driftline run` does it, and checked: it lies in the source's `refresh_hours` and not before
`interval_min`; no interval is longer than `interval_max`, the next window and the queue of the
source; no fragment is refreshed more often than its `refreshes_per_day` and the rounding to whole
hours allow. Processor seconds of this thread are printed, which do not count what other processes
do.
"""

from __future__ import annotations

import heapq
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
from driftline.settings.hours import WeekSpan, next_open

from warehouse_agent.change_models.memory import RECENT_MAX, Interval, LearnedMemories, Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week
from warehouse_agent.timetable.decision import Circumstances, Decision, decide
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult
from warehouse_agent.timetable.timing import Timing

ZONE = "Europe/Vienna"
MONDAY = 1_767_567_600.0  # 2026-01-05, midnight in Vienna
ROWS = 45_000.0
REFRESH_S = 20.0  # that a refresh takes; 50 fragments of a source then need 17 minutes
ASKED_S = HOUR_S  # from one question to a source to the next
PER_DAY = 4.0
_HOUR = np.arange(HOURS)
_OFFICE = (_HOUR // 24 < 5) & (_HOUR % 24 >= 9) & (_HOUR % 24 < 18)
LOADS = (
    np.where(_OFFICE, 8.0, np.where(_HOUR // 24 < 5, 1.6, 0.4)),  # 20 : 4 : 1
    np.full(HOURS, 2.0),
    np.where(_HOUR % 24 == 3, 60.0, 0.0),  # one job a night
)
WINDOWS = ((), ("20:00-08:00",), ("Mon-Fri 06:00-22:00", "Sat,Sun"))


@dataclass
class Simulated:
    """One fragment: its timing, what happens to it, and what its refreshes found."""

    name: str
    source: int
    timing: Timing
    allowed: tuple[WeekSpan, ...]
    is_asked: bool
    at: np.ndarray
    upto: np.ndarray
    memory: Memory
    last: float
    began: list[float] = field(default_factory=list)

    def changed(self, start: float, end: float) -> float:
        """Rows that change in (start, end]."""
        a, b = np.searchsorted(self.at, (start, end), side="right")
        return float(self.upto[b] - self.upto[a])

    def decide(self, learned: LearnedMemories, now: float) -> Decision:
        """The decision of now; the source is asked at whole hours."""
        probe = ProbeResult()
        if self.is_asked:
            rows = self.changed(self.last, now // ASKED_S * ASKED_S)
            probe = ProbeResult(ProbeAnswer.CHANGED if rows else ProbeAnswer.UNCHANGED, rows)
        given = Circumstances(self.last, probe, self.allowed, REFRESH_S)
        fitted = learned.of(self.name, self.memory)
        return decide(fitted, [self.timing], given, now, expects=False)

    def refresh(self, now: float) -> None:
        """Remember what a refresh finds."""
        rows = self.changed(self.last, now)
        self.memory = self.memory.plus(Interval(self.last, now, rows / 2, rows / 2, 0.0, ROWS))
        self.last = now
        self.began.append(now)


@dataclass(frozen=True)
class Outcome:
    """What a simulation came to; `broken`: rules that a refresh broke, in words."""

    refreshes: int
    decisions: int
    seconds: float
    decision_s_max: float
    broken: list[str]


def made(fragments: int, sources: int, days: float, seed: int) -> list[Simulated]:
    """Draw histories and the changes of the simulated days."""
    rng = np.random.default_rng(seed)
    timings = (
        Timing(zone=ZONE),
        Timing(zone=ZONE, freshness_s=16 * 3600),
        Timing(zone=ZONE, refreshes_per_day=PER_DAY, interval_max_s=3 * 86_400),
        Timing(zone=ZONE, refreshes_per_day=PER_DAY, interval_min_s=7200, interval_max_s=86_400),
        Timing(zone=ZONE, refresh_worth=200.0, interval_min_s=3600, interval_max_s=2 * 86_400),
    )
    simulated = []
    for n in range(fragments):
        load = LOADS[n % len(LOADS)] * rng.uniform(0.5, 2)
        window = WINDOWS[n % sources % len(WINDOWS)]
        spans = tuple(span for text in window if (span := WeekSpan.parse(text)) is not None)
        memory = history(load, rng)
        at = events(load / 3, days, rng)
        rows = rng.geometric(1 / 3, len(at)).astype(float)
        simulated.append(
            Simulated(
                f"f{n}",
                n % sources,
                timings[n % len(timings)],
                spans,
                n % 2 == 0,
                at,
                np.concatenate([[0.0], np.cumsum(rows)]),
                memory,
                memory.recent[-1].end,
            )
        )
    return simulated


def history(load: np.ndarray, rng: np.random.Generator) -> Memory:
    """What 400 refreshes found, one every 5 to 7 hours, until MONDAY."""
    hours = rng.uniform(5, 7, RECENT_MAX).cumsum()
    edges = MONDAY - (hours[-1] - np.concatenate([[0.0], hours])) * HOUR_S
    expected = Week(ZONE).exposures(edges[:-1].tolist(), edges[1:].tolist()) @ load
    counts = rng.negative_binomial(np.maximum(expected, 1e-9) / 4, 1 / 5)  # dispersed fivefold
    intervals = [
        Interval(a, b, n / 2, n / 2, 0.0, ROWS)
        for a, b, n in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    ]
    return Memory(tuple(intervals), until=MONDAY)


def events(per_hour: np.ndarray, days: float, rng: np.random.Generator) -> np.ndarray:
    """Moments of a recurrent Poisson process from MONDAY on, increasing."""
    hours = np.arange(int(days * 24) + 1)
    count = rng.poisson(per_hour[hours % HOURS])
    at = np.repeat(hours, count) + rng.random(int(count.sum()))
    return MONDAY + np.sort(at) * HOUR_S


def simulate(fragments: int = 500, sources: int = 10, days: float = 30, seed: int = 1) -> Outcome:
    """Decide through the days; each source refreshes one fragment at a time."""
    all_ = made(fragments, sources, days, seed)
    learned, free = LearnedMemories(), [MONDAY] * sources
    queue = [(MONDAY, n) for n in range(fragments)]
    decisions, slowest, end = 0, 0.0, MONDAY + days * 86_400
    began_s = time.thread_time()
    while queue[0][0] < end:
        now, n = heapq.heappop(queue)
        one = all_[n]
        if now < free[one.source]:
            heapq.heappush(queue, (free[one.source], n))
            continue
        before_s = time.thread_time()
        decision = one.decide(learned, now)
        slowest = max(slowest, time.thread_time() - before_s)
        decisions += 1
        if decision.due:
            one.refresh(now)
            free[one.source] = now + REFRESH_S
        again = now + 1 if decision.due else decision.at
        if one.is_asked and one.timing.listens:
            again = min(again, (now // ASKED_S + 1) * ASKED_S)
        heapq.heappush(queue, (max(again, now + 1), n))
    spent_s = time.thread_time() - began_s
    broken = [rule for one in all_ for rule in check(one, fragments / sources, end)]
    return Outcome(sum(len(one.began) for one in all_), decisions, spent_s, slowest, broken)


def check(one: Simulated, neighbours: float, end: float) -> list[str]:
    """Return the rules that the refreshes of a fragment broke."""
    timing, broken = one.timing, []
    edges = [MONDAY, *one.began]
    for before, at in zip(edges, [*one.began, end], strict=True):
        local = datetime.fromtimestamp(at, ZoneInfo(ZONE))
        if at != end and next_open(one.allowed, local) != local:
            broken.append(f"{one.name} began at {local}, outside its window")
        if at != end and at - before < timing.interval_min_s - 1:
            broken.append(f"{one.name} began after {at - before:.0f} s")
        latest = before + timing.interval_max_s
        opened = next_open(one.allowed, datetime.fromtimestamp(latest, ZoneInfo(ZONE)))
        if at > opened.timestamp() + neighbours * REFRESH_S + 60:
            broken.append(f"{one.name} was not refreshed for {(at - before) / HOUR_S:.1f} h")
    return broken


def main() -> None:
    """Print what a simulation took, and every rule that was broken."""
    given = [int(word) for word in sys.argv[1:]]
    total = simulate(*given)
    print(
        f"{total.refreshes} refreshes, {total.decisions} decisions, {total.seconds:.1f} s of one "
        f"processor, {total.seconds / total.decisions * 1e3:.2f} ms each, slowest "
        f"{total.decision_s_max * 1e3:.0f} ms (with fits); {len(total.broken)} rules broken"
    )
    print("\n".join(total.broken))
    sys.exit(1 if total.broken else 0)


if __name__ == "__main__":
    main()

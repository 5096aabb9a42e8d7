"""Decide when a fragment is due, and why: from its memory, what its source said, and timings.

In this order: the longest interval bounds all; a probe, where there is one, tells whether anything
is to be refreshed; else the plan of the model, where a replay of this fragment's own history says
that it costs GAIN less than the fixed interval, wherever in their intervals the changes were, or at
the times that its rows claim; else the fixed interval. Of several timings the strictest wins: the
one that is due first.

Pure: no I/O and no clock. Moments are seconds since 1970.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
from driftline.arrays import Integers
from driftline.settings.hours import WeekSpan, next_open

from warehouse_agent.change_models import processes
from warehouse_agent.change_models.fit import FINER, Model
from warehouse_agent.change_models.memory import Distance, Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week
from warehouse_agent.timetable import claims, policies, replay
from warehouse_agent.timetable.claims import Claims
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult, pending, pending_enough
from warehouse_agent.timetable.retry import FailureStreak
from warehouse_agent.timetable.timing import Timing, TimingPolicy, hours_allowed

GAIN = 0.95  # cost over that of the fixed interval, from which the model may choose
CACHED = 1024  # fragments whose models a process keeps: about 2 kB each, and their memories
NEVER = math.inf  # the moment at which nothing is due
PLANNED_MIN_H = 2.0  # plans are in whole hours, so shorter intervals stay fixed
ASK_S = 60.0  # the shortest time until a source is asked again whether anything changed
CLOCK_S = 60.0  # a refresh that is further in the future shows that a clock was set


@dataclass(frozen=True, slots=True)
class Decision:
    """The moment at which a fragment is due; `at` is now if it is.

    Attributes:
        due: refresh it now.
        at: else not before this moment, as far as is known now, or NEVER.
        why: in words.
        by: the fragment or view whose timing it is.
        policy: what chose the moment.
        rows, row_hours, stale_hours: expected from the last refresh until one at `at` is published;
            None: no model, or not known yet. Row-hours are weighted; a row that changes again
            counts once.
        untold: why they are not known yet, in words; empty: they are, or there is no model.
        bytes: that a refresh is expected to send; None: not known.
    """

    due: bool
    at: float
    why: str
    by: str = ""
    policy: str = ""
    rows: float | None = None
    row_hours: float | None = None
    stale_hours: float | None = None
    bytes: float | None = None
    untold: str = ""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts that a decision is made from, beside memory and timings.

    Attributes:
        last: when the snapshot of the published version was taken, by the clock of the warehouse;
            None: none is published.
        behind_s: seconds by which the state that it showed was older than that, by the source.
        allowed: hours in which refreshes may begin; none: always.
        zone: the time zone of these; empty: that of the timing.
        closed_until: the source said that it reads nothing before this moment; None: it did not.
        failed: the refreshes that failed since the last that went well; None: it did.
        claims: times that rows claim, of which the model is made; None: of counts of refreshes.
        duration_s: seconds from a snapshot until its version is published.
        bytes: that a refresh sends.
    """

    last: float | None
    probe: ProbeResult = field(default_factory=ProbeResult)
    allowed: tuple[WeekSpan, ...] = ()
    duration_s: float = 0.0
    bytes: float | None = None
    zone: str = ""
    closed_until: float | None = None
    failed: FailureStreak | None = None
    claims: Claims | None = None
    behind_s: float = 0.0


def decide(
    memory: Memory,
    timings: Sequence[Timing],
    given: Circumstances,
    now: float,
    *,
    expects: bool = True,
) -> Decision:
    """Decide whether a fragment is due now, else when it will be.

    Args:
        timings: that make it due; none: it never is.
        now: by the clock of the warehouse.
        expects: also say what is expected to be unseen until then, which takes a fitted model; a
            decision alone takes none where there is a fixed interval or nothing changed.
    """
    if not timings:
        why = "it has no `freshness`, `refreshes_per_day`, `refresh_worth` or `interval_max`"
        return Decision(False, NEVER, why)
    if given.failed is not None and given.failed.at > now + CLOCK_S:  # a clock was set
        given = replace(given, failed=None)
    if given.last is None:
        at, why = _opened(now, "never refreshed", given, timings[0].zone)
        return Decision(at <= now, at, why, timings[0].by, bytes=given.bytes)
    if given.last > now + CLOCK_S:
        why = "its last refresh lies in the future: the clock of the warehouse was set"
        at, why = _opened(now, why, given, timings[0].zone)
        return Decision(at <= now, at, why, timings[0].by, bytes=given.bytes)
    if given.last > now:
        given = replace(given, last=now)
    decisions = [_one(memory, timing, given, now, expects) for timing in timings]
    return min(decisions, key=lambda one: one.at)


def _one(
    memory: Memory, timing: Timing, given: Circumstances, now: float, expects: bool
) -> Decision:
    assert given.last is not None
    last = given.last
    at, why, policy = _moment(memory, timing, given, now)
    latest = last + timing.interval_max_s
    if at >= latest:
        at, why = latest, f"{why}; the longest interval is {_hours(timing.interval_max_s / HOUR_S)}"
    at = max(at, last + timing.interval_min_s, now)
    at, why = _opened(at, f"{why}{_late(timing, given)}", given, timing.zone)
    decision = Decision(at <= now, at, why, timing.by, policy, bytes=given.bytes)
    model = claims.model(memory, timing.zone, given.claims) if expects else None
    if model is None:
        return decision
    hours = (decision.at - last) / HOUR_S
    if not model.knows(hours):
        return replace(decision, untold=_untold(model, hours))
    size = memory.recent[-1].rows if memory.recent else 0.0
    moved = memory.mean_distance(timing.distance)
    told = _unseen(model, timing, given, last, decision.at, size, moved)
    return replace(decision, rows=told.rows, row_hours=told.row_hours, stale_hours=told.stale_hours)


def _untold(model: Model, hours: float) -> str:
    """Return why nothing is said of so many hours, in words."""
    times = "time" if model.intervals == 1 else "times"
    return (
        f"what to expect of {_hours(hours)} is not known yet: changes were counted"
        f" {model.intervals} {times}, over {_hours(model.seen_h)} in all"
    )


def _late(timing: Timing, given: Circumstances) -> str:
    """Return that the freshness cannot be kept, and what can be, in words; empty: it can be."""
    best_s = timing.attainable_s(given.allowed, given.duration_s) + given.behind_s
    if timing.freshness_s is None or timing.freshness_s >= best_s:
        return ""
    is_behind = given.behind_s >= ASK_S
    old = f", of a state {_hours(given.behind_s / HOUR_S)} old by its source" if is_behind else ""
    return (
        f"; a freshness of {_hours(timing.freshness_s / HOUR_S)} cannot be kept, as a refresh takes"
        f" {_hours(given.duration_s / HOUR_S)}{old}: the best is {_hours(best_s / HOUR_S)}"
    )


def _opened(at: float, why: str, given: Circumstances, zone: str) -> tuple[float, str]:
    """Return the first moment from `at` on at which failures and the source's hours let a refresh
    begin, and why."""
    if given.failed is not None and at < given.failed.until:
        at, why = given.failed.until, f"{why}; {given.failed.why}"
    if given.closed_until is not None and at < given.closed_until:
        at, why = given.closed_until, f"{why}; its source reads nothing before then"
    local = datetime.fromtimestamp(at, ZoneInfo(given.zone or zone))
    if (opened := next_open(given.allowed, local)) != local:
        at, why = opened.timestamp(), f"{why}; refresh_hours begin then"
    return at, why


def _moment(
    memory: Memory, timing: Timing, given: Circumstances, now: float
) -> tuple[float, str, str]:
    """Return the moment that a timing names, why, and the policy; limits are not applied yet."""
    assert given.last is not None
    if given.probe.is_known and timing.listens:
        return (*_by_probe(memory, timing, given, now), "probe")
    if (
        given.probe.answer is ProbeAnswer.HEARTBEAT
        and timing.listens
        and timing.freshness_s is None
    ):
        return given.last + timing.interval_max_s, given.probe.why, "probe"
    wait_s = given.probe.wait_s
    if (
        given.probe.answer is ProbeAnswer.PUT_OFF
        and timing.listens
        and _may_wait(timing, given, wait_s)
    ):
        return now + wait_s, given.probe.why or "its source may be asked again then", "probe"
    is_any = timing.policy is TimingPolicy.FIRST_ALTERATION  # one change is as good as another
    weighed, note = memory if is_any else _weighed(memory, timing.by_change, timing.distance), ""
    if given.probe.answer is ProbeAnswer.CONTRADICTED:
        note = "; its source said that nothing changed when something had, so it is not believed"
    known = (
        None if timing.refresh_worth is None else claims.model(weighed, timing.zone, given.claims)
    )
    interval = timing.interval_h(known, given.duration_s)
    if (planned := _plan(weighed, timing, given, interval)) is not None:
        plan, why, policy = planned
        return given.last + float(plan[Week(timing.zone).hour_of(given.last)]) * HOUR_S, why, policy
    at = given.last + _less_behind(timing, given, interval * HOUR_S)
    return at, f"every {_hours(interval)}{note}", TimingPolicy.FIXED.value


@functools.lru_cache(maxsize=CACHED)
def _weighed(
    memory: Memory, by_change: tuple[float, float, float], distance: Distance | None
) -> Memory:
    """Return the memory with changes counted by their weights: one object for each memory."""
    return memory.weighed(by_change, distance)


def _may_wait(timing: Timing, given: Circumstances, wait_s: float) -> bool:
    """Return True if changes are not late when the source is asked so many seconds from now."""
    return timing.freshness_s is None or wait_s <= timing.freshness_s - given.duration_s


def _less_behind(timing: Timing, given: Circumstances, interval_s: float) -> float:
    """Return an interval less what the last snapshot was behind, where changes have to be fresh.

    At most half of it: else what is always behind, such as a standby of a primary that rests, or a
    wrong clock, would be due again after each refresh.
    """
    if timing.freshness_s is None:
        return interval_s
    return interval_s - min(given.behind_s, interval_s / 2)


def _by_probe(
    memory: Memory, timing: Timing, given: Circumstances, now: float
) -> tuple[float, str]:
    assert given.last is not None
    if given.probe.answer is ProbeAnswer.UNCHANGED:
        # What changes from now on is late after the freshness, so the source is asked before.
        again_s = math.inf if timing.freshness_s is None else timing.freshness_s - given.duration_s
        return now + max(again_s, ASK_S), "its source says that nothing changed"
    if timing.freshness_s is not None:
        interval_s = max(timing.freshness_s - given.duration_s, 0.0)
        at = given.last + _less_behind(timing, given, interval_s)
        return at, "its source says that it changed"
    model = claims.model(memory, timing.zone, given.claims)
    rows = pending(given.probe, (now - given.last) / HOUR_S, model)
    weighed = claims.model(
        _weighed(memory, timing.by_change, timing.distance), timing.zone, given.claims
    )
    enough = 1.0
    if model is not None and weighed is not None and model.mean > 0:
        hour_weight = float(timing.hourly_weights().mean())
        enough = pending_enough(timing.price(weighed), hour_weight, weighed)
        enough = max(enough * model.mean / weighed.mean, 1.0)  # in rows of any weight
    told = "" if given.probe.rows is not None else "about "
    why = f"{told}{rows:,.0f} rows changed, and {enough:,.0f} are worth a refresh"
    if rows >= enough or model is None or model.mean <= 0:
        return now, why
    hour = Week(timing.zone).hour_of(now) + (now % HOUR_S) / HOUR_S
    return now + processes.inverse(model.hourly, hour, enough - rows) * HOUR_S, why


def _plan(
    memory: Memory, timing: Timing, given: Circumstances, interval: float
) -> tuple[Integers, str, str] | None:
    """Return the plan of a model, why, and its name; None: the interval is fixed."""
    is_bound = timing.freshness_s is not None or timing.policy is TimingPolicy.FIXED
    is_plain = timing.policy is TimingPolicy.AUTO and not timing.listens
    if is_bound or is_plain or interval < PLANNED_MIN_H:
        return None
    if (model := claims.model(memory, timing.zone, given.claims)) is None or model.mean <= 0:
        return None
    if timing.policy is not TimingPolicy.AUTO:
        return (
            _planned(timing, given.allowed, model)[0],
            f"by the policy {timing.policy.value}",
            timing.policy.value,
        )
    if len(model.rates) == 1:
        return None
    said = given.claims if model.is_claimed else None
    ratio = _gain(memory, timing, given.allowed, interval, said, model.mean)
    if ratio is None or ratio > GAIN:
        return None
    source = "its history" if said is None else "the times that its rows claim"
    why = f"by the model, which costs {1 - ratio:.0%} less in a replay of {source}"
    return _planned(timing, given.allowed, model)[0], why, "model"


@functools.lru_cache(maxsize=CACHED)
def _gain(
    memory: Memory,
    timing: Timing,
    allowed: tuple[WeekSpan, ...],
    interval: float,
    said: Claims | None,
    mean: float,
) -> float | None:
    """Return what the model costs over what the fixed interval costs, as `replay.gain` does, or, if
    claimed times made the model, `claims.gain`."""
    weights = timing.hourly_weights()

    def planned(learned: Model) -> tuple[Integers, float]:
        return _planned(timing, allowed, learned)

    if said is not None:
        return claims.gain(said, timing.zone, weights, planned, interval, mean)
    return replay.gain(memory, timing.zone, weights, planned, interval)


@functools.lru_cache(maxsize=CACHED)
def _planned(timing: Timing, allowed: tuple[WeekSpan, ...], model: Model) -> tuple[Integers, float]:
    """Return the plan of a timing under a model, hours [168], and the price of a refresh."""
    price, weights = timing.price(model), timing.hourly_weights()
    most = max(1, int(timing.interval_max_s / HOUR_S))
    least = min(max(1, math.ceil(timing.interval_min_s / HOUR_S), _finest(model)), most)
    if timing.policy is TimingPolicy.FIRST_ALTERATION:
        expected = float(model.events.mean()) * timing.interval_h(model)
        plan = policies.first_alteration(model.events, processes.alteration(expected), most)
        return np.maximum(plan, least), price
    others = model.hourly * (1 - model.shares[0])
    table = policies.obsolescence_table(
        others, weights, most, model.inserted, model.deleted_per_row
    )
    if timing.policy is TimingPolicy.THRESHOLD:
        plan = policies.threshold(table, price)
    else:
        plan = policies.optimal(table, price, least=least, allowed=hours_allowed(allowed))
    return np.maximum(plan, least), price


def _finest(model: Model) -> int:
    """Return the least hours of an interval of which the model says something."""
    return max(1, math.ceil(model.shortest_h / FINER))


@dataclass(frozen=True, slots=True)
class Unseen:
    """Changes that nobody has seen, as the model expects them.

    Attributes:
        rows: changed rows; one that changes again counts once.
        row_hours: weighted, until they are published.
        stale_hours: in which any change was unseen.
    """

    rows: float
    row_hours: float
    stale_hours: float


def unseen(memory: Memory, timing: Timing, given: Circumstances, until: float) -> Unseen | None:
    """Return what is expected to be unseen from the last refresh until one at `until` is published;
    None: nothing is published, or too little is known."""
    if given.last is None or until < given.last:
        return None
    model = claims.model(memory, timing.zone, given.claims)
    if model is None or not model.knows((until - given.last) / HOUR_S):
        return None
    size = memory.recent[-1].rows if memory.recent else 0.0
    moved = memory.mean_distance(timing.distance)
    return _unseen(model, timing, given, given.last, until, size, moved)


def _unseen(
    model: Model,
    timing: Timing,
    given: Circumstances,
    last: float,
    until: float,
    size: float,
    moved: float,
) -> Unseen:
    """Return what is expected to be unseen; `size`: rows of the relation, 0: not known; `moved`:
    the mean distance of an updated row."""
    week, weights = Week(timing.zone), timing.hourly_weights()
    hours = (until - last) / HOUR_S
    start = float(week.hour_of(last)) + (last % HOUR_S) / HOUR_S
    end, deaths = start + hours, np.full(HOURS, model.deleted_per_row)
    born = processes.inserted(model.inserted, deaths, start, end)
    born_hours = processes.obsolescence(model.inserted, weights, start, end, deaths)
    # A row that changes again counts once.
    others = model.hourly * (1 - model.shares[0])
    changed = processes.integral(others, start, end)
    changed_hours = processes.obsolescence(others, weights, start, end)
    of_rows, of_row_hours = processes.net(changed, size)
    late = given.duration_s / HOUR_S
    # Until the refresh is published, what it found is unseen still.
    late_hours = late * float(weights.mean())
    weight, other_weight = timing.change_weights(model, moved)
    return Unseen(
        rows=born + changed * of_rows,
        row_hours=weight * (born_hours + born * late_hours)
        + other_weight * (changed_hours * of_row_hours + changed * of_rows * late_hours),
        stale_hours=processes.stale(model.events, start, end)
        + late * processes.alteration((born + changed) / model.batch),
    )


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.1f} days"

"""Decisions: what wins, within which limits, and what is said; no clock runs."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from driftline.relations.activity import CountedActivity
from driftline.settings.hours import WeekSpan
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.weeks import HOUR, MONDAY, OFFICE, every, remembered
from warehouse_agent.change_models.fit import KNOWN_MIN, fit
from warehouse_agent.change_models.memory import Distance, Interval, MeanSquare, Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS
from warehouse_agent.timetable.activity_change import ALARMS_MAX, FullRefresh, change_since
from warehouse_agent.timetable.decision import ASK_S, Circumstances, Decision, decide
from warehouse_agent.timetable.probe import ProbeAnswer, ProbeResult, pending, pending_enough
from warehouse_agent.timetable.retry import FailureStreak
from warehouse_agent.timetable.timing import Timing, TimingPolicy

DAY_S = 86_400
FLAT = remembered(np.full(HOURS, 2.0), every(24), np.random.default_rng(1))
OFFICE_ONLY = remembered(np.where(OFFICE, 4.0, 0.0), every(3, weeks=16), np.random.default_rng(2))
LAST = MONDAY + 60 * DAY_S + 5 * HOUR_S
DAILY = Timing("orders", refreshes_per_day=1, interval_max_s=4 * DAY_S)


def decided(
    hours: float, timing: Timing = DAILY, memory: Memory = FLAT, **given: Any
) -> tuple[Decision, float]:
    """The decision `hours` after the last refresh, and the hours from then on until it is due."""
    found = decide(memory, [timing], Circumstances(LAST, **given), LAST + hours * HOUR_S)
    return found, (found.at - LAST) / HOUR_S


def test_never_refreshed() -> None:
    found = decide(Memory(), [DAILY], Circumstances(None), LAST)
    assert (found.due, found.why) == (True, "never refreshed")


def test_what_failed_is_due_after_its_wait() -> None:
    """And when its source reads; a failure that lies in the future shows that a clock was set."""
    twice = FailureStreak(2, LAST + 30 * HOUR_S, "SHRANK", 6)
    early, at = decided(30, failed=twice)
    assert not early.due
    assert at == pytest.approx(30 + 2 / 60)
    assert early.why.endswith("its last 2 refreshes failed (SHRANK), so it is tried again then")
    assert decided(30.04, failed=twice)[0].due
    assert decided(23, failed=replace(twice, at=LAST + 23 * HOUR_S))[1] == pytest.approx(24)
    assert decided(29, failed=twice)[0].due
    assert decided(30, failed=twice, closed_until=LAST + 31 * HOUR_S)[1] == pytest.approx(31)
    never = decide(Memory(), [DAILY], Circumstances(None, failed=twice), twice.at)
    assert (never.due, never.at) == (False, twice.until)


@pytest.mark.parametrize(
    ("timing", "hours"),
    [
        (DAILY, 24),
        (replace(DAILY, refreshes_per_day=4), 6),
        (Timing(freshness_s=3600), 1),
        (Timing(), 24),
        (Timing(interval_max_s=7200), 2),
        (Timing(refreshes_per_day=100, interval_min_s=3600), 1),
        (Timing(refreshes_per_day=0.1), 24),
    ],
)
def test_fixed_intervals(timing: Timing, hours: float) -> None:
    before, at = decided(hours - 0.1, timing, Memory())
    assert not before.due
    assert at == pytest.approx(hours)
    assert decided(hours, timing, Memory())[0].due
    assert decided(hours + 5, timing, Memory())[0].due


def test_freshness_counts_the_time_of_a_refresh() -> None:
    assert decided(0.1, Timing(freshness_s=7200), duration_s=1800.0)[1] == pytest.approx(1.5)


def test_a_refresh_is_worth_its_price() -> None:
    """√(2m/λ): 576 row-hours at 2 rows an hour are a day."""
    timing = Timing(refresh_worth=576, policy=TimingPolicy.FIXED, interval_max_s=9 * DAY_S)
    assert decided(1, timing)[1] == pytest.approx(24, rel=0.1)


def test_the_source_says_that_nothing_changed() -> None:
    found, at = decided(30, probe=ProbeResult(ProbeAnswer.UNCHANGED))
    assert not found.due
    assert at == 96
    assert "nothing changed" in found.why
    assert "longest interval is 4.0 days" in found.why
    assert decided(96, probe=ProbeResult(ProbeAnswer.UNCHANGED))[0].due


def test_the_source_counts_changes() -> None:
    """At √(2mλ) = λ·24 h = 48 rows, less a batch."""
    model = fit(FLAT, "UTC")
    assert model is not None
    enough = pending_enough(DAILY.price(model), 1.0, model)
    assert enough == pytest.approx(48 - model.batch, rel=0.15)
    few, at = decided(5, probe=ProbeResult(ProbeAnswer.CHANGED, 20))
    assert not few.due
    assert at == pytest.approx(5 + (enough - 20) / model.mean)
    assert decided(5, probe=ProbeResult(ProbeAnswer.CHANGED, math.ceil(enough)))[0].due


def test_the_source_says_that_something_changed() -> None:
    found, at = decided(5, probe=ProbeResult(ProbeAnswer.CHANGED))
    assert found.why.startswith("about 10 rows changed")
    assert at > 5
    assert decided(5, memory=Memory(), probe=ProbeResult(ProbeAnswer.CHANGED))[0].due
    timing = Timing(freshness_s=2 * 3600)
    assert decided(1, timing, probe=ProbeResult(ProbeAnswer.CHANGED))[1] == 2
    assert decided(3, timing, probe=ProbeResult(ProbeAnswer.CHANGED))[0].due
    unchanged, at = decided(3, timing, probe=ProbeResult(ProbeAnswer.UNCHANGED))
    assert not unchanged.due
    assert at == 5  # when it is asked again: what changes right now is then two hours old
    slow = decided(3, timing, probe=ProbeResult(ProbeAnswer.UNCHANGED), duration_s=3 * HOUR_S)
    assert not slow[0].due
    assert slow[1] == pytest.approx(3 + ASK_S / HOUR_S)


def test_a_source_that_was_asked_too_recently_is_asked_again() -> None:
    """Also where the last refresh is older than the interval: nothing says that anything changed.
    Only a wait that the freshness does not leave, or the longest interval, ends that."""
    refused = ProbeResult(ProbeAnswer.PUT_OFF, why="too recently", wait_s=600.0)
    for timing in (DAILY, Timing(freshness_s=7200, interval_max_s=4 * DAY_S)):
        found, at = decided(90, timing, probe=refused)
        assert (found.due, found.why) == (False, "too recently")
        assert at == pytest.approx(90 + 1 / 6)
        assert decided(96, timing, probe=refused)[0].due
    assert decided(90, Timing(freshness_s=7200), probe=refused, duration_s=6900.0)[0].due
    assert decided(25, replace(DAILY, policy=TimingPolicy.FIXED), probe=refused)[0].due


@pytest.mark.parametrize("answer", list(ProbeAnswer))
def test_a_last_refresh_in_the_future_is_repeated(answer: ProbeAnswer) -> None:
    """The clock of the warehouse was set back: nobody knows how long ago it was."""
    found, at = decided(-48, probe=ProbeResult(answer))
    assert (found.due, at) == (True, -48)
    assert "the clock of the warehouse was set" in found.why
    assert not decided(-0.01, probe=ProbeResult(answer, wait_s=60.0, rows=1))[0].due


@settings(max_examples=50)
@given(
    st.sampled_from(ProbeAnswer),
    st.floats(0, 1e9),
    st.builds(Timing, freshness_s=st.integers(1200, DAY_S)) | st.just(DAILY),
)
def test_what_a_standby_shows_is_not_due_again_at_once(
    answer: ProbeAnswer, behind_s: float, timing: Timing
) -> None:
    """A primary that rests, or a wrong clock: no refresh shows anything newer."""
    probe = ProbeResult(answer, rows=1.0 if answer is ProbeAnswer.CHANGED else None, wait_s=60.0)
    memory = FLAT if timing is DAILY else Memory()
    found, at = decided(0, timing, memory, probe=probe, behind_s=behind_s, duration_s=60.0)
    assert not found.due
    if timing.freshness_s is not None and answer not in {
        ProbeAnswer.UNCHANGED,
        ProbeAnswer.PUT_OFF,
    }:
        interval_h = (timing.freshness_s - 60) / HOUR_S
        assert at == pytest.approx(max(interval_h - behind_s / HOUR_S, interval_h / 2))


def test_a_state_that_is_too_old_for_its_freshness_is_told() -> None:
    why = decided(0, Timing(freshness_s=600), Memory(), behind_s=1800.0, duration_s=60.0)[0].why
    assert "takes 1 min, of a state 30 min old by its source: the best is 32 min" in why


@pytest.mark.parametrize("answer", [ProbeAnswer.UNKNOWN, ProbeAnswer.CONTRADICTED])
def test_a_source_that_is_not_believed(answer: ProbeAnswer) -> None:
    found, at = decided(1, probe=ProbeResult(answer))
    assert at == 24
    assert ("not believed" in found.why) == (answer is ProbeAnswer.CONTRADICTED)


def test_pending_rows_of_a_flag() -> None:
    """E[D | D > 0]: at least a batch."""
    model = fit(FLAT, "UTC")
    assert model is not None
    assert pending(ProbeResult(ProbeAnswer.CHANGED), 1e-6, model) == pytest.approx(
        model.batch, rel=0.01
    )
    assert pending(ProbeResult(ProbeAnswer.CHANGED), 100, model) == pytest.approx(
        model.mean * 100, rel=0.01
    )
    assert pending(ProbeResult(ProbeAnswer.UNCHANGED), 100, model) == 0


def test_the_model_where_a_replay_says_that_it_gains() -> None:
    found, _ = decided(1, memory=OFFICE_ONLY)
    assert found.policy == "model"
    assert "less in a replay" in found.why
    assert OFFICE[(int(found.at - MONDAY) // 3600 - 1) % HOURS]  # right after office hours
    assert decided(1, memory=FLAT)[0].policy == "fixed"
    assert decided(1, replace(DAILY, policy=TimingPolicy.FIXED), OFFICE_ONLY)[0].policy == "fixed"


@pytest.mark.parametrize(
    "policy", [TimingPolicy.OPTIMAL, TimingPolicy.THRESHOLD, TimingPolicy.FIRST_ALTERATION]
)
def test_policies_that_are_named(policy: TimingPolicy) -> None:
    """Also against a probe: who names a policy gets it."""
    timing = replace(DAILY, policy=policy)
    found, _ = decided(1, timing, OFFICE_ONLY, probe=ProbeResult(ProbeAnswer.UNCHANGED))
    assert found.policy == policy.value


def test_the_strictest_wish_wins() -> None:
    given = Circumstances(LAST)
    view = Timing("report", freshness_s=3600)
    found = decide(FLAT, [DAILY, view], given, LAST + 10)
    assert (found.by, found.at) == ("report", LAST + 3600)


def test_allowed_hours() -> None:
    """In Vienna, where it is one hour later than in UTC."""
    span = WeekSpan.parse("20:00-06:00")
    assert span is not None
    timing = replace(DAILY, refreshes_per_day=24 / 10, zone="Europe/Vienna")
    found, at = decided(1, timing, allowed=(span,))
    assert at == 14  # at 05:00 + 14 h = 19:00 UTC
    assert "refresh_hours begin then" in found.why


@given(st.floats(1e-6, 20))
def test_many_changes_are_due_at_any_moment(days: float) -> None:
    assert decided(days * 24, probe=ProbeResult(ProbeAnswer.CHANGED, 1e6))[0].due


@pytest.mark.parametrize("answer", list(ProbeAnswer))
def test_without_a_goal_the_longest_interval_is_what_was_asked_for(answer: ProbeAnswer) -> None:
    found, at = decided(5, Timing(), probe=ProbeResult(answer, 1e6))
    assert (found.due, at) == (False, 24)


@settings(max_examples=20)
@given(
    st.floats(0, 10), st.sampled_from([FLAT, OFFICE_ONLY, Memory()]), st.sampled_from(ProbeAnswer)
)
def test_a_decision_is_the_same_without_what_is_expected(
    days: float, memory: Memory, answer: ProbeAnswer
) -> None:
    given, now = Circumstances(LAST, ProbeResult(answer)), LAST + days * DAY_S
    found = decide(memory, [DAILY], given, now)
    alone = decide(memory, [DAILY], given, now, expects=False)
    assert alone == replace(found, rows=None, row_hours=None, stale_hours=None, untold="")


timings = st.builds(
    Timing,
    refreshes_per_day=st.floats(0.05, 500),
    interval_min_s=st.integers(0, 7200),
    interval_max_s=st.integers(7200, 10 * DAY_S),
    policy=st.sampled_from(TimingPolicy),
)
probes = st.builds(
    ProbeResult, st.sampled_from(ProbeAnswer), st.none() | st.integers(0, 1000).map(float)
)


@settings(max_examples=40)
@given(timings, probes, st.floats(0, 20), st.sampled_from([FLAT, OFFICE_ONLY, Memory()]))
def test_limits_hold_whatever_is_said(
    timing: Timing, probe: ProbeResult, days: float, memory: Memory
) -> None:
    found, at = decided(days * 24, timing, memory, probe=probe)
    now = days * 24
    assert found.due == (found.at <= LAST + now * HOUR_S)
    assert max(timing.interval_min_s / HOUR_S, now) <= at + 1e-6
    assert at <= max(timing.interval_max_s / HOUR_S, now) + 1e-6
    assert found.why
    if memory is not Memory() and found.rows is not None:
        assert found.row_hours is not None
        assert found.stale_hours is not None
        assert 0 <= found.stale_hours <= at + 1e-6


def test_expected_staleness_of_a_constant_rate() -> None:
    found, _ = decided(1)
    model = fit(FLAT, "UTC")
    assert model is not None
    assert found.rows == pytest.approx(model.mean * 24)
    assert found.row_hours == pytest.approx(model.mean * 24**2 / 2)


def test_more_than_a_week_is_expected_whole() -> None:
    timing = Timing(interval_max_s=28 * DAY_S)
    found, at = decided(1, timing)
    model = fit(FLAT, "UTC")
    assert model is not None
    assert at == 28 * 24
    assert found.rows == pytest.approx(model.mean * at)
    assert found.row_hours == pytest.approx(model.mean * at**2 / 2)


def minutes_of(count: int, changed: float) -> Memory:
    """Refreshes of a table of 20,000 rows, a minute apart."""
    at = [LAST + 60 * n for n in range(count + 1)]
    found = [Interval(a, b, 0.0, changed, 0.0, 20_000.0) for a, b in pairwise(at)]
    return Memory(tuple(found), until=at[-1])


def test_minutes_of_history_say_nothing_of_a_day() -> None:
    """They made 41,570 changes of 20,000 rows, and millions of row-hours."""
    day = decided(1, memory=minutes_of(6, 29.0))[0]
    assert (day.rows, day.row_hours, day.stale_hours) == (None, None, None)
    assert day.untold == (
        "what to expect of 24 h is not known yet: changes were counted 6 times, over 6 min in all"
    )
    assert "1 time, over" in decided(1, memory=minutes_of(1, 29.0))[0].untold
    soon = decided(0, Timing(freshness_s=300), minutes_of(6, 29.0))[0]
    assert soon.untold == "", "of five minutes they do"
    assert soon.rows == pytest.approx(5 * 29, rel=0.1)
    assert decided(1, memory=Memory())[0].untold == "", "nothing is fitted, so nothing is said"


@given(st.integers(KNOWN_MIN, 60), st.floats(0.0, 20_000.0))
def test_no_more_rows_change_than_there_are(days: int, changed: float) -> None:
    at = [LAST + DAY_S * n for n in range(days + 1)]
    found = [Interval(a, b, 0.0, changed, 0.0, 20_000.0) for a, b in pairwise(at)]
    timing = Timing(interval_max_s=3 * DAY_S)
    said, _ = decided(1, timing, Memory(tuple(found), until=at[-1]))
    assert said.rows is not None
    assert said.row_hours is not None
    assert 0 <= said.rows <= 20_000
    assert 0 <= said.row_hours <= 20_000 * 72


def test_weights_move_a_refresh_before_the_hours_that_count() -> None:
    """Of changes in the night, with readers in office hours."""
    span = WeekSpan.parse("Mon-Fri 09:00-18:00")
    assert span is not None
    timing = replace(DAILY, policy=TimingPolicy.OPTIMAL, weights=((span, 20.0),))
    assert timing.hourly_weights().tolist() == np.where(OFFICE, 20.0, 1.0).tolist()
    rates, rng = np.where(HOUR % 24 < 6, 4.0, 0.0), np.random.default_rng(3)
    nights = remembered(rates, every(3, weeks=16), rng)
    found, at = decided(0, timing, nights)
    assert 6 <= (5 + at) % 24 <= 9, found


def kinds(inserted: float, updated: float, deleted: float, days: int = 60) -> Memory:
    """What daily refreshes told that found so many rows of each kind."""
    memory = Memory()
    for day in range(days):
        start = LAST + (day - days) * DAY_S
        found = (inserted, updated, deleted)
        memory = memory.plus(Interval(start, start + DAY_S, *found, 10_000))
    return replace(memory, until=LAST)


def test_changes_count_by_their_weight() -> None:
    """A flow of λ rows that weigh w is refreshed every √(2m/wλ), and costs w as many row-hours."""
    worth = Timing(refresh_worth=2_400, interval_max_s=9 * DAY_S)
    memory = kinds(10, 80, 10)
    plain, hours = decided(1, worth, memory)
    assert hours == pytest.approx(math.sqrt(2 * 2_400 * 24 / 100), rel=0.02)
    by_change = (1.0, 0.2, 5.0)
    mean = (10 * 1 + 80 * 0.2 + 10 * 5) / 100
    weighed, sooner = decided(1, replace(worth, by_change=by_change), memory)
    assert sooner == pytest.approx(hours / math.sqrt(mean), rel=0.02)
    daily, counted = (
        decided(1, replace(DAILY, by_change=each), memory)[0]
        for each in (by_change, (1.0, 1.0, 1.0))
    )
    assert daily.at == counted.at
    assert counted.row_hours is not None
    assert daily.rows == pytest.approx(counted.rows)
    assert daily.row_hours == pytest.approx(counted.row_hours * mean, rel=0.02)
    assert plain.policy == weighed.policy


def test_updates_count_by_how_far_a_column_moved() -> None:
    """Moves of half of the scale weigh a quarter: intervals twice as long for updates alone."""
    worth = Timing(refresh_worth=2_400, interval_max_s=90 * DAY_S)
    plain = kinds(0, 100, 0)
    moves = MeanSquare("price", 0.25, 1.0)
    memory = replace(plain, recent=tuple(replace(one, moves=moves) for one in plain.recent))
    near = replace(worth, distance=Distance("price", 1.0))
    _, hours = decided(1, worth, memory)
    _, longer = decided(1, near, memory)
    assert longer == pytest.approx(2 * hours, rel=0.02)
    daily, counted = (
        decided(1, replace(DAILY, distance=one), memory)[0] for one in (near.distance, None)
    )
    assert counted.row_hours is not None
    assert daily.rows == pytest.approx(counted.rows)
    assert daily.row_hours == pytest.approx(counted.row_hours / 4, rel=0.02)
    other, _ = decided(1, replace(DAILY, distance=Distance("weight")), memory)
    assert other.row_hours == pytest.approx(counted.row_hours)


def test_rows_that_are_deleted_weigh_where_they_are_deleted() -> None:
    """Insertions by day, deletions by night: weights move a plan towards what weighs most."""
    memory, day = Memory(), 0
    for day in range(120):
        start = LAST + (day - 120) * DAY_S / 2 - 5 * HOUR_S
        found = (100, 0, 0) if day % 2 else (0, 0, 100)
        memory = memory.plus(Interval(start, start + DAY_S / 2, *found, 10_000))
    weighed = memory.weighed((1.0, 1.0, 50.0))
    model = fit(weighed, "UTC")
    assert model is not None
    rates = model.hourly.reshape(7, 24).mean(axis=0)
    assert max(rates[:12].mean(), rates[12:].mean()) > 20 * min(
        rates[:12].mean(), rates[12:].mean()
    )


def test_a_probe_counts_rows_and_their_mean_weight() -> None:
    memory, weights = kinds(0, 100, 0), (1.0, 0.25, 1.0)
    worth = Timing(refresh_worth=2_400, interval_max_s=90 * DAY_S)
    for by_change, enough in (((1.0, 1.0, 1.0), 1.0), (weights, 4.0)):
        timing = replace(worth, by_change=by_change)
        found = decided(1, timing, memory, probe=ProbeResult(ProbeAnswer.CHANGED, 1.0))[0]
        expected = math.sqrt(2 * 2_400 * 100 / 24 / enough) * enough
        said = float(found.why.split(", and ")[1].split()[0].replace(",", ""))
        assert said == pytest.approx(expected, rel=0.05)


def test_a_heartbeat_waits_for_the_longest_interval() -> None:
    """A source that says "changed" each minute while refreshes find nothing, for a week."""
    silent, timing = Memory(), replace(DAILY, refreshes_per_day=24, interval_max_s=2 * DAY_S)
    history, last, refreshes = [FullRefresh(CountedActivity("aa", 0), 0)], LAST, []
    for minute in range(7 * 24 * 60):
        now, said = LAST + minute * 60, CountedActivity("aa", minute + 1)
        probe = change_since(history[-1].activity, said, history)
        if decide(silent, [timing], Circumstances(last, probe), now, expects=False).due:
            silent = silent.plus(Interval(last, now + 1, 0, 0, 0, 45_000))
            history.append(FullRefresh(said, 0))
            last = now
            refreshes.append(minute)
    assert refreshes[:ALARMS_MAX] == list(range(ALARMS_MAX))
    assert np.diff(refreshes[ALARMS_MAX - 1 :]).tolist() == [2 * 24 * 60] * 3
    beat = ProbeResult(ProbeAnswer.HEARTBEAT, why="again")
    assert decided(5, Timing(freshness_s=3600 * 6), probe=beat)[1] == 6


def test_half_of_a_table_changes_at_once() -> None:
    """One bulk change among small ones moves the interval, but not to where it fits neither."""
    timing = Timing(refresh_worth=576, policy=TimingPolicy.FIXED, interval_max_s=9 * DAY_S)
    bulk = replace(FLAT.recent[40], inserted=0.0, updated=22_500.0)
    shaken = replace(FLAT, recent=(*FLAT.recent[:40], bulk, *FLAT.recent[41:]))
    ratio = decided(1, timing, shaken)[1] / decided(1, timing)[1]
    assert 0.4 < ratio <= 1
    assert decided(1, memory=shaken)[0].policy == "fixed"


@pytest.mark.parametrize("count", [1, 2, 60])
@pytest.mark.parametrize("policy", TimingPolicy)
def test_a_history_without_changes(count: int, policy: TimingPolicy) -> None:
    """Nothing is divided by what never happened; what was asked for is kept."""
    silent = remembered(np.zeros(HOURS), every(24)[: count + 1], np.random.default_rng(1))
    found, at = decided(1, replace(DAILY, policy=policy), silent)
    nothing = 0 if count >= KNOWN_MIN else None
    assert (found.rows, found.row_hours, found.stale_hours) == (nothing,) * 3
    assert bool(found.untold) == (count < KNOWN_MIN)
    assert at == 24
    worth = Timing(refresh_worth=100, policy=policy, interval_max_s=4 * DAY_S)
    assert decided(1, worth, silent)[1] == 96


def test_refresh_hours_in_the_night_in_which_the_clock_changes() -> None:
    """In Vienna on 2026-03-29 there is no 02:30; the window then begins at 03:00 summer time."""
    span = WeekSpan.parse("02:30-04:00")
    assert span is not None
    night = datetime(2026, 3, 28, 23, tzinfo=UTC).timestamp()  # midnight there
    timing = Timing(interval_max_s=1800, zone="Europe/Vienna")
    given = Circumstances(night - 3600, allowed=(span,))
    found = decide(Memory(), [timing], given, night)
    at = datetime.fromtimestamp(found.at, ZoneInfo("Europe/Vienna"))
    assert not found.due
    assert at.utcoffset() == timedelta(hours=2)
    assert (at.hour, at.minute) == (3, 30)
    later = decide(Memory(), [timing], given, found.at)
    assert later.due


def test_a_closed_source_is_due_when_it_opens() -> None:
    """Also one that was never refreshed, and not before its `refresh_hours`, if these are later."""
    evening = WeekSpan.parse("20:00-06:00")
    assert evening is not None
    now = MONDAY + 12 * HOUR_S
    for hour, opens in ((15, 20), (21, 21), (11, 20)):
        closed = MONDAY + hour * HOUR_S
        for last in (None, now - 3 * DAY_S):
            given = Circumstances(last, allowed=(evening,), closed_until=closed)
            found = decide(Memory(), [DAILY], given, now)
            assert (found.due, found.at) == (False, MONDAY + opens * HOUR_S)
        free = decide(Memory(), [DAILY], Circumstances(None, closed_until=closed), now)
        assert free.at == max(closed, now)
        assert free.due == (closed <= now)


def test_refresh_hours_are_those_of_the_clock_of_the_source() -> None:
    """Whatever time zone the fragment names for its weights."""
    evening = WeekSpan.parse("20:00-06:00")
    assert evening is not None
    timing = replace(DAILY, zone="Asia/Tokyo")
    given = Circumstances(MONDAY - 3 * DAY_S, allowed=(evening,), zone="Europe/Vienna")
    found = decide(Memory(), [timing], given, MONDAY + 12 * HOUR_S)
    assert found.at == MONDAY + 19 * HOUR_S


@pytest.mark.parametrize(
    ("freshness_s", "least_s", "duration_s", "best"),
    [
        (600, 0, 400, "13 min"),
        (600, 900, 60, "16 min"),
        (1200, 0, 600, None),
        (600, 0, 300, None),
    ],
)
def test_a_freshness_that_cannot_be_kept_is_told(
    freshness_s: int, least_s: int, duration_s: float, best: str | None
) -> None:
    """A refresh takes longer than was known when the file was read."""
    timing = Timing(freshness_s=freshness_s, interval_min_s=least_s)
    found = decided(0.1, timing, Memory(), duration_s=duration_s)[0]
    assert ("cannot be kept" in found.why) == (best is not None)
    if best is not None:
        assert f"the best is {best}" in found.why
    night = WeekSpan.parse("20:00-06:00")
    assert night is not None
    late = decided(1, Timing(freshness_s=14 * 3600), Memory(), allowed=(night,), duration_s=600.0)
    assert "a freshness of 14 h cannot be kept, as a refresh takes 10 min: the best is 14 h" in (
        late[0].why
    )

"""Claimed times in decisions: what is kept of them, the model that is made, and when it decides."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warehouse_agent.change_models.test_event_times import stream
from tests.warehouse_agent.change_models.weeks import HOUR, MONDAY, every, remembered
from warehouse_agent.change_models.event_times import gathered
from warehouse_agent.change_models.fit import fit
from warehouse_agent.change_models.memory import Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS
from warehouse_agent.timetable import claims
from warehouse_agent.timetable.claims import Claims, from_json
from warehouse_agent.timetable.decision import GAIN, Circumstances, decide
from warehouse_agent.timetable.timing import Timing

WEEKS = 20
END = MONDAY + WEEKS * HOURS * HOUR_S
OFFICE = (HOUR % 24 >= 9) & (HOUR % 24 < 18)  # of all days: days do not differ
NIGHTLY = remembered(np.where(OFFICE, 4.0, 0.0), every(24, WEEKS), np.random.default_rng(3))
TIMING = Timing("orders", refreshes_per_day=3, interval_max_s=4 * 86_400)


def claimed(rates: np.ndarray, *, is_creation: bool = True, seed: int = 1) -> Claims:
    return Claims.of(gathered(stream(rates, seed, WEEKS), END), is_creation=is_creation)


OFFICE_ONLY = claimed(np.where(OFFICE, 4.0, 0.0))


@given(
    hours=st.lists(st.floats(0, 26 * HOURS, exclude_max=True), min_size=1, max_size=60),
    copies=st.integers(1, 3),
)
def test_hours_events_and_rows_survive(hours: list[float], copies: int) -> None:
    """Whatever the times: each event stays in its hour of UTC, and no row is lost or made."""
    found = gathered(
        np.repeat(MONDAY + np.array(hours) * HOUR_S, copies), MONDAY + 26 * HOURS * HOUR_S
    )
    kept = from_json(json.loads(json.dumps(Claims.of(found, is_creation=False).to_json())))
    assert kept is not None
    again = kept.gathered()
    assert (again.at // HOUR_S).tolist() == (found.at // HOUR_S).tolist()
    assert (np.diff(again.at) >= 0).all()
    assert (again.at <= kept.end).all()
    assert (again.rows >= 1).all()
    for hour in np.unique(found.at // HOUR_S):
        some = [one.rows[one.at // HOUR_S == hour].sum() for one in (found, again)]
        assert some[0] == some[1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"is_creation": True, "start": 0, "end": 1, "events": [1], "rows": []},
        {"is_creation": True, "start": 0, "end": 1, "events": [2], "rows": [1]},
        {"is_creation": True, "start": 2, "end": 1, "events": [1], "rows": [1]},
        {"is_creation": True, "start": 0, "end": 1, "events": [-1], "rows": [1]},
        {"is_creation": True, "start": 0, "end": 1, "events": ["x"], "rows": [1]},
        {"is_creation": True, "start": 0, "end": 1, "events": [10**30], "rows": [10**30]},
    ],
)
def test_damaged_claims_are_none(body: dict[str, object]) -> None:
    assert from_json(body) is None


def test_hours_come_from_the_times_and_the_level_from_refreshes() -> None:
    """Refreshes at midnight cannot tell hours; the times do, and show a tenth of the changes."""
    blind = fit(NIGHTLY, "UTC")
    assert blind is not None
    assert "hours of the day are not known" in blind.untold[0]
    few = claimed(np.where(OFFICE, 0.4, 0.0))
    found = claims.model(NIGHTLY, "UTC", few)
    assert found is not None
    assert found.is_claimed
    assert found.mean == pytest.approx(blind.mean)
    assert np.corrcoef(found.hourly, OFFICE)[0, 1] > 0.7
    alone = claims.model(Memory(), "UTC", few)
    assert alone is not None
    assert alone.mean == pytest.approx(0.4 * OFFICE.mean() * 1.1, rel=0.25)


@pytest.mark.parametrize(
    ("is_creation", "inserted", "updated", "deleted", "is_used"),
    [
        (True, 1, 0, 0, True),
        (True, 4, 6, 0, False),
        (False, 4, 6, 0, True),
        (False, 1, 1, 8, False),
    ],
)
def test_times_that_say_nothing_of_most_changes_are_not_used(
    is_creation: bool, inserted: float, updated: float, deleted: float, is_used: bool
) -> None:
    total = inserted + updated + deleted
    memory = Memory(
        tuple(
            replace(
                one,
                inserted=one.changed * inserted / total,
                updated=one.changed * updated / total,
                deleted=one.changed * deleted / total,
            )
            for one in NIGHTLY.recent
        )
    )
    said = claimed(np.where(OFFICE, 4.0, 0.0), is_creation=is_creation)
    found = claims.model(memory, "UTC", said)
    assert found is not None
    assert found.is_claimed == is_used


def test_refreshes_that_find_nothing_are_believed() -> None:
    quiet = Memory(tuple(replace(one, inserted=0.0) for one in NIGHTLY.recent))
    found = claims.model(quiet, "UTC", OFFICE_ONLY)
    assert found is not None
    assert not found.is_claimed


def test_a_few_times_are_no_model() -> None:
    few = Claims.of(gathered(MONDAY + np.arange(5.0) * HOUR_S, END), is_creation=True)
    assert claims.model(Memory(), "UTC", few) is None
    assert (
        claims.gain(few, "UTC", np.ones(HOURS), lambda _: (np.full(HOURS, 8), 1.0), 8, 1.0) is None
    )


@pytest.mark.parametrize("level", [0.05, 1, 10])
def test_a_replay_is_at_the_level_of_the_refreshes(level: float) -> None:
    """The price of a refresh is one in rows: at another level any plan would beat the clock."""
    rates = np.where(HOUR == 3, 6.0, 2.0)
    said = claimed(rates, is_creation=False)
    daily = remembered(level * rates, every(24, WEEKS), np.random.default_rng(5))
    memory = Memory(
        tuple(replace(one, inserted=0.0, updated=one.inserted) for one in daily.recent),
        until=daily.until,
    )
    timing = Timing("orders", refresh_worth=3000, interval_max_s=7 * 86_400)
    why = decide(memory, [timing], Circumstances(END, claims=said), END + 1).why
    assert why.startswith("every"), why


def decided(memory: Memory, said: Claims | None, hour: float) -> tuple[str, float]:
    """The policy, and the hours from a refresh at an hour of Monday until the next one."""
    last = END + hour * HOUR_S
    found = decide(memory, [TIMING], Circumstances(last, claims=said), last + 1)
    return found.policy, (found.at - last) / HOUR_S


def test_a_decision_by_claimed_times() -> None:
    """Without them every 8 hours; with them nothing is refreshed in the night, and more by day."""
    assert decided(NIGHTLY, None, 19) == ("fixed", 8)
    policy, night = decided(NIGHTLY, OFFICE_ONLY, 19)
    assert policy == "model"
    assert 14 <= night <= 24
    assert decided(NIGHTLY, OFFICE_ONLY, 10)[1] < 8
    last = END + 19 * HOUR_S
    why = decide(NIGHTLY, [TIMING], Circumstances(last, claims=OFFICE_ONLY), last + 1).why
    assert "less in a replay of the times that its rows claim" in why


def test_a_constant_stream_stays_with_the_interval() -> None:
    flat = claimed(np.full(HOURS, 1.0))
    assert decided(NIGHTLY, flat, 19) == ("fixed", 8)


def test_a_plan_that_does_not_gain_is_not_taken() -> None:
    """The last third is at night, so what was learned before it costs more than the interval."""
    day, night = (stream(np.where(o, 4.0, 0.0), 5, WEEKS) for o in (OFFICE, ~OFFICE))
    turn = MONDAY + WEEKS * HOURS * HOUR_S * 2 / 3
    times = np.concatenate([day[day < turn], night[night >= turn]])
    said = Claims.of(gathered(times, END), is_creation=True)
    assert decided(NIGHTLY, said, 19) == ("fixed", 8)
    assert decided(NIGHTLY, OFFICE_ONLY, 19)[0] == "model"
    assert GAIN < 1

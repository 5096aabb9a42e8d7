"""The predicted number of changes: a proper distribution, what moves it, and two real histories."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.decisions.expect import (
    HISTORIES,
    NegativeBinomial,
    Schedule,
    mean_rate,
    mean_rate_overdispersed,
    ours,
    paper,
    pasts,
    score,
)
from benchmarks.decisions.pauses import Commits, losses
from tests.harness.histories import DATA, available
from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.planning.change_forecast import (
    DAY_S,
    DAYS_MIN,
    HISTORY_MAX,
    ChangeForecast,
    DayOfChanges,
    EarlierRefresh,
    RefreshOutcome,
    after_pause,
    expect,
    is_pause,
    spans,
)

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
BULK = 20_000

counts = st.one_of(st.just(0), st.integers(0, 50), st.integers(0, 10**9))
seconds = st.floats(0, 1e10)
histories = st.lists(
    st.builds(RefreshOutcome, seconds, counts, counts, counts, counts), max_size=30
)
tables = st.integers(0, 10**12)
small = st.lists(st.integers(1, 30), min_size=20, max_size=60)


def past(changed: int, elapsed_s: float = DAY_S, rows: int = 50_000) -> RefreshOutcome:
    return RefreshOutcome(elapsed_s, rows, 0, changed, 0)


def daily(changes: list[int]) -> ChangeForecast:
    return expect([past(changed) for changed in changes], rows=50_000, elapsed_s=DAY_S)


def spread(found: ChangeForecast) -> float:
    """Return σ: (1 + σ)·median is the quantile one standard deviation above the median."""
    return (found.quantile(NormalDist().cdf(1)) - found.median) / max(found.median, 1)


@given(histories, tables, seconds)
def test_the_probabilities_sum_to_one(history, rows, elapsed_s):
    found = expect(history, rows=rows, elapsed_s=elapsed_s)
    upto = 200
    within = math.fsum(math.exp(found.log_probability(d)) for d in range(upto + 1))
    assert within + found.survival(upto) == pytest.approx(1, abs=1e-9)
    assert found.weights.sum() == pytest.approx(1)
    assert math.exp(found.log_probability(0)) == found.unchanged


@given(histories, tables, seconds, st.lists(st.floats(0, 1, exclude_max=True), min_size=2))
def test_a_quantile_is_the_least_that_holds_it_and_rises(history, rows, elapsed_s, shares):
    found = expect(history, rows=rows, elapsed_s=elapsed_s)
    quantiles = [found.quantile(q) for q in sorted(shares)]
    assert quantiles == sorted(quantiles)
    for q, d in zip(sorted(shares), quantiles, strict=True):
        assert found.survival(d) <= 1 - q
        assert d == 0 or found.survival(d - 1) > 1 - q


@given(histories, tables, seconds)
def test_the_interval_holds_eighty_percent_and_the_median(history, rows, elapsed_s):
    found = expect(history, rows=rows, elapsed_s=elapsed_s)
    assert 0 <= found.low <= found.median <= found.high <= found.quantile(0.98)
    assert 1 - found.survival(found.low - 1) <= 0.18
    held = found.survival(found.low - 1) - found.survival(found.high)
    assert held >= 0.8 - 1e-9
    # No more than it must: without its last number it would hold less.
    if found.high > found.low:
        assert found.survival(found.low - 1) - found.survival(found.high - 1) < 0.8 + 1e-9
    assert spread(found) >= 0


@pytest.mark.parametrize("changes", [[50] * 9, [1, 2, 1, 3, 5, 2, 1, 9], [0, 40] * 9, [7, 700] * 9])
def test_no_interval_of_eighty_percent_has_more_equal_tails(changes):
    found = daily(changes)

    def lean(low: int) -> float:
        below = 1 - found.survival(low - 1)
        return abs(below - found.survival(found.quantile(below + 0.8)))

    others = [low for low in range(found.median + 1) if 1 - found.survival(low - 1) <= 0.18]
    assert lean(found.low) == pytest.approx(min(map(lean, others)), abs=1e-9)


def test_a_bulk_change_widens_no_other_kernel():
    usual = [48, 53, 41, 55, 50, 47, 60, 44, 52] * 3
    quiet, bulk = daily(usual), daily([*usual[:9], BULK, *usual[9:]])
    assert bulk.scales[0] == pytest.approx(quiet.scales[0], rel=0.1)


def test_a_forecast_of_a_poisson_rate_is_hardly_wider_than_its_chance():
    """It was by more than a half: the kernels added all of the chance that the sample has."""
    rng = np.random.default_rng(4)
    found = daily([int(d) for d in rng.poisson(50, size=60)])
    width = found.quantile(0.9) - found.quantile(0.1)
    assert 1 <= width / (2 * 1.28 * math.sqrt(50)) <= 1.3


@given(histories, tables, seconds, st.integers(0, 10**18))
def test_nothing_is_impossible(history, rows, elapsed_s, d):
    found = expect(history, rows=rows, elapsed_s=elapsed_s)
    assert -math.inf < found.log_probability(d) <= 0


@given(histories, histories, tables, seconds)
def test_only_the_newest_refreshes_count(older, history, rows, elapsed_s):
    newest = (history or [past(1)]) * HISTORY_MAX
    a = expect(newest[-HISTORY_MAX:], rows=rows, elapsed_s=elapsed_s)
    b = expect([*older, *newest], rows=rows, elapsed_s=elapsed_s)
    assert [a.quantile(q / 10) for q in range(10)] == [b.quantile(q / 10) for q in range(10)]


@given(small, st.integers(1_000, 10**7), st.integers(0, 60))
@example([7, *[6] * 4, *[1] * 15], 1_000, 20)
def test_one_bulk_change_hardly_moves_the_median(changes, bulk, place):
    """Its own size is never expected again. But it raises the level, so that a busier season of the
    same table resembles the present: the median may rise to what was seen in that season."""
    before = daily(changes).median
    after = daily([*changes[:place], bulk, *changes[place:]]).median
    assert before / 3 - 1 <= after <= max(3 * before + 1, *changes)


def test_a_bulk_change_is_forgotten_but_not_excluded():
    usual = [4, 7, 2, 9, 5, 3, 8, 1, 6, 4] * 4
    found = daily([*usual, BULK, *usual])
    assert found.high <= 2 * max(usual)
    assert found.log_probability(BULK) > daily([*usual, *usual]).log_probability(BULK) + 2
    assert found.survival(BULK // 2) > 0.003


@given(small, st.integers(2, 1_000))
def test_the_unit_of_time_does_not_matter(changes, unit):
    a = expect([past(d, 10.0 + d) for d in changes], rows=1_000, elapsed_s=20.0)
    b = expect([past(d, unit * (10.0 + d)) for d in changes], rows=1_000, elapsed_s=unit * 20.0)
    for d in (0, 1, 5, 100):
        assert a.log_probability(d) == pytest.approx(b.log_probability(d))


@given(st.lists(st.integers(10, 40), min_size=10, max_size=60), st.sampled_from([10, 1_000]))
def test_a_busier_table_is_expected_to_be_busier(changes, times):
    ratio = daily([d * times for d in changes]).median / daily(changes).median
    assert times / 2 <= ratio <= times * 2


def test_without_history_anything_from_nothing_to_a_good_part_is_expected():
    found = expect([], rows=750_000, elapsed_s=DAY_S)
    assert found.unchanged == pytest.approx(0.2)
    assert found.low == 0
    assert 10 < found.median < 1_000 < found.high < 75_000
    assert found.survival(750_000) < 0.01


def test_one_refresh_is_already_evidence():
    prior, found = daily([]), daily([4_000])
    assert prior.median < 1_000 < found.median < 8_000
    assert found.unchanged < prior.unchanged < daily([0]).unchanged


def test_where_nothing_ever_changes_nothing_is_expected():
    found = daily([0] * 30)
    assert (found.low, found.median, found.high, spread(found)) == (0, 0, 0, 0)
    assert 0.9 < found.unchanged < 1


def test_ten_refreshes_alike_leave_little_doubt():
    rng = np.random.default_rng(1)
    found = daily([int(d) for d in rng.poisson(7_500, size=10)])
    assert found.median == pytest.approx(7_500, rel=0.03)
    assert spread(found) < 0.06
    assert found.high < 1.1 * found.median


@pytest.mark.parametrize(("before", "after"), [(5, 800), (800, 5), (50, 5), (5_000, 50_000)])
def test_a_shift_of_the_level_is_followed_within_ten_refreshes(before, after):
    rng = np.random.default_rng(2)
    changes = [*rng.poisson(before, size=120), *rng.poisson(after, size=10)]
    found = daily([int(d) for d in changes])
    assert after / 2 <= found.median <= 2 * after


def test_what_changes_by_the_clock_scales_with_it():
    daily_and_weekly = [past(10, DAY_S), past(71, 7 * DAY_S)] * 10
    found = expect(daily_and_weekly, rows=50_000, elapsed_s=30 * DAY_S)
    assert found.median == pytest.approx(300, rel=0.2)
    idle = [past(0), past(0), past(0), past(12)] * 8
    assert expect(idle, rows=50_000, elapsed_s=30 * DAY_S).unchanged < 0.35


def test_what_changes_when_one_looks_does_not_scale():
    whenever = [past(10, DAY_S), past(11, 7 * DAY_S)] * 10
    assert expect(whenever, rows=50_000, elapsed_s=30 * DAY_S).median < 20


def test_a_negative_binomial_is_what_it_says():
    poisson = NegativeBinomial(3.0)
    for d in (0, 1, 7):
        expected = d * math.log(3) - 3 - math.lgamma(d + 1)
        assert poisson.log_probability(d) == pytest.approx(expected, abs=1e-6)
    geometric = NegativeBinomial(3.0, size=1.0)  # P(d) = ¼·(¾)^d
    for d in (0, 1, 7):
        assert math.exp(geometric.log_probability(d)) == pytest.approx(0.25 * 0.75**d)
    assert [geometric.quantile(q) for q in (0.2, 0.25 + 1e-9, 0.5)] == [0, 1, 2]


real = pytest.mark.skipif(
    not all(map(available, HISTORIES)),
    reason=f"NO REAL TABLES, NOT TESTED: {DATA} is not there",
)


@real
@pytest.mark.parametrize("name", HISTORIES)
def test_a_refresh_at_every_commit_finds_what_the_curators_counted(name):
    with (DATA / name / "changes_all_commits.csv").open(newline="") as file:
        for row, found in zip(csv.DictReader(file), pasts(name, Schedule.COMMIT), strict=True):
            counted = [int(row[c]) for c in ("rows_before", "inserts", "updates", "deletes")]
            assert counted == [found.rows, found.inserted, found.updated, found.deleted]


@pytest.mark.slow
@real
@pytest.mark.parametrize("schedule", Schedule, ids=lambda schedule: schedule.value)
@pytest.mark.parametrize("name", HISTORIES)
def test_the_interval_covers_real_refreshes_and_the_loss_is_least(name, schedule):
    history = pasts(name, schedule)
    found = score(history, ours)
    idle = float(np.mean([refresh.changed == 0 for refresh in history]))
    # Where more than 90 % of the refreshes find nothing, every interval that holds 0 covers them.
    most = max(0.9, idle + 0.03)
    assert 0.75 <= found.coverage <= most, found
    for baseline in (paper, mean_rate, mean_rate_overdispersed):
        assert found.log_loss_nats < score(history, baseline).log_loss_nats, baseline.__name__


def hourly(count: int, changed: int = 0) -> list[EarlierRefresh]:
    return [
        EarlierRefresh(BEGIN + timedelta(hours=n), 0, changed, 0, 50_000, n == 0, "range", 1, 1.0)
        for n in range(count + 1)
    ]


def days_of(*changed: int, gap: int = 1) -> list[DayOfChanges]:
    return [
        DayOfChanges(BEGIN.date() - timedelta(days=gap * (len(changed) - n)), 0, one, 0)
        for n, one in enumerate(changed)
    ]


def test_after_a_pause_totals_of_days_tell_what_refreshes_cannot() -> None:
    """Nothing changed in the hours that the lines have; each day before them brought 700."""
    earlier, days = hourly(100), days_of(*[700] * 40)
    last = earlier[-1].at
    for pause_h, expected in ((1, 0), (19, 0), (24, 700), (72, 2100), (24 * 28, 19_600)):
        found = changes_expected(earlier, 50_000, last + timedelta(hours=pause_h), days)
        assert found is not None
        median = found.median
        assert abs(median - expected) <= 0.1 * expected, (pause_h, median)
    without = changes_expected(earlier, 50_000, last + timedelta(days=3))
    assert without is not None
    assert without.median < 50


def test_refreshes_count_where_they_are_like_the_pause_or_cover_a_month() -> None:
    days, long = days_of(*[700] * 40), hourly(100)
    after = [replace(one, at=one.at + timedelta(days=2)) for one in long[50:]]
    weekend = [*long[:50], *after]
    now = weekend[-1].at + timedelta(days=2)
    assert after_pause(weekend, 50_000, now, days) == []
    assert after_pause(long, 50_000, long[-1].at + timedelta(days=2), days) != []
    for one in (days[-DAYS_MIN:], days[:1], []):
        assert after_pause(long, 50_000, long[-1].at + timedelta(days=2), one) == []
    assert after_pause(long[:1], 50_000, now, days) == []
    assert not is_pause([5 * 3600.0] * 200, 30 * DAY_S)
    assert is_pause([3 * 3600.0] * 200, 30 * DAY_S)


def test_days_are_added_up_to_the_length_of_a_pause() -> None:
    """From the newest day that was over; a day without refreshes belongs to the next one."""
    days = days_of(*range(1, 22))
    assert [one.changed for one in spans(days, 9, DAY_S)] == [*range(2, 21)]
    assert [one.changed for one in spans(days, 9, 3.4 * DAY_S)] == [12, 21, 30, 39, 48, 57]
    assert {one.elapsed_s for one in spans(days, 9, 3.4 * DAY_S)} == {3 * DAY_S}
    (whole,) = spans(days, 9, 300 * DAY_S)
    assert (whole.changed, whole.elapsed_s, whole.rows) == (sum(range(2, 21)), 19 * DAY_S, 9)
    weekly = spans(days_of(5, 6, 7, 8, gap=7), 9, DAY_S)
    assert [(one.changed, one.elapsed_s) for one in weekly] == [(6, 7 * DAY_S), (7, 7 * DAY_S)]


@pytest.mark.skipif(not available(HISTORIES[0]), reason="NO REAL TABLES, NOT TESTED")
@pytest.mark.parametrize("name", HISTORIES)
def test_totals_predict_real_tables_better_after_a_pause(name: str) -> None:
    commits = Commits(name)
    moments = np.linspace(commits.at_s[0] + 120 * DAY_S, commits.at_s[-1] - 8 * DAY_S, 40).tolist()
    found = list(losses(commits, moments, 600.0, 3 * DAY_S))
    assert np.mean([one.by_refreshes - one.by_days for one in found]) > 0.3

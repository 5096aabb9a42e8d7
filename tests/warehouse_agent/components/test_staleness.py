"""Staleness of views: the formulas against a simulation, and the number of phases against all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.components.staleness import (
    FIXED_S_MIN,
    PhaseCost,
    ProvenBatch,
    Staleness,
    best_phases,
    expected_parts_s,
    expected_vs_s,
    learned,
    measured,
)

seconds = st.floats(0.01, 1000.0)
costs = st.builds(PhaseCost, st.floats(0.01, 100.0), st.floats(0.0, 0.01))


def simulated(phases: int, base_s: float, rows: int, cost: PhaseCost) -> Staleness:
    """Staleness of `rows` changes, one after the other, cut into `phases` chunks of one size."""
    each, now, spent, found = base_s / rows, 0.0, 0.0, None
    for chunk in range(phases):
        first, last = rows * chunk // phases, rows * (chunk + 1) // phases
        batches = [ProvenBatch(1, now + each * (i + 1), spent) for i in range(last - first)]
        now += each * (last - first)
        phase_s = cost.seconds(last - first)
        now, spent = now + phase_s, spent + phase_s
        one = measured(batches, now)
        assert one is not None
        found = one if found is None else found.merged(one)
    assert found is not None
    return found


@given(st.integers(1, 40), seconds, st.integers(400, 2000), costs)
def test_eq_7_and_8_are_what_a_simulation_finds(
    phases: int, base_s: float, rows: int, cost: PhaseCost
) -> None:
    found = simulated(phases, base_s, rows, cost)
    s1, s2 = expected_parts_s(phases, base_s, rows, cost)
    # Rows are whole, and a row is proven at the end of its own time.
    slack = (base_s + cost.row_s * rows) / rows + cost.seconds(rows / phases) * phases / rows * 2
    assert found.s1_s == pytest.approx(s1, rel=0.05, abs=slack * phases)
    assert found.s2_s == pytest.approx(s2, rel=0.05, abs=slack * 2)
    assert found.vs_s == pytest.approx(found.s1_s + found.s2_s)


@given(st.integers(1, 500), seconds, st.integers(0, 10**6), costs)
def test_the_derived_form_is_eq_7(phases: int, base_s: float, rows: int, cost: PhaseCost) -> None:
    a, bc = cost.fixed_s, cost.row_s * rows
    derived = (base_s + bc) / (2 * phases) + a * phases / 2 + (a + bc) / 2
    assert expected_vs_s(phases, base_s, rows, cost) == pytest.approx(derived)


@given(seconds, st.integers(1, 10**6), costs, st.integers(1, 400))
def test_no_number_of_phases_is_better(
    base_s: float, rows: int, cost: PhaseCost, most: int
) -> None:
    found = best_phases(base_s, rows, cost, most)
    assert 1 <= found <= most
    least = min(expected_vs_s(n, base_s, rows, cost) for n in range(1, most + 1))
    assert expected_vs_s(found, base_s, rows, cost) <= least * (1 + 1e-9)


@pytest.mark.slow
def test_the_best_number_is_near_the_best_of_a_simulation() -> None:
    rng = random.Random(16)
    for _ in range(40):
        base_s, rows = rng.uniform(1, 500), rng.randint(600, 3000)
        cost = PhaseCost(rng.uniform(0.1, 20), rng.uniform(0, 0.02))
        found = best_phases(base_s, rows, cost, 60)
        best = min(simulated(n, base_s, rows, cost).vs_s for n in range(1, 61))
        assert simulated(found, base_s, rows, cost).vs_s <= best * 1.02


@given(st.floats(0.1, 10.0), st.floats(0.0, 0.01), st.integers(0, 2**32))
def test_a_cost_is_learned_although_some_phases_are_outliers(
    fixed_s: float, row_s: float, seed: int
) -> None:
    rng = random.Random(seed)
    phases = [(n, fixed_s + row_s * n) for n in rng.sample(range(1, 10_000), 13)]
    phases += [(rng.randint(1, 10_000), 60.0) for _ in range(3)]  # Spark was started
    rng.shuffle(phases)
    found = learned(phases)
    assert found is not None
    assert (found.fixed_s, found.row_s) == pytest.approx((fixed_s, row_s), rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0.0, 1e4)), max_size=16))
def test_a_learned_cost_is_possible(phases: list[tuple[int, float]]) -> None:
    found = learned(phases)
    assert (found is None) == (not phases)
    if found is not None:
        assert found.fixed_s >= FIXED_S_MIN
        assert found.row_s >= 0
        assert best_phases(100.0, 1000.0, found, 1 << 20) >= 1


def test_phases_of_one_size_are_taken_for_fixed() -> None:
    assert learned([(100, 2.0), (100, 3.0), (100, 40.0)]) == PhaseCost(3.0, 0.0)


def test_measured() -> None:
    found = measured(
        [ProvenBatch(3, 10.0, 1.0), ProvenBatch(1, 14.0, 5.0), ProvenBatch(0, 0.0)], 20.0
    )
    assert found == Staleness(4, 2.0, 9.0)
    assert found.vs_s == 11.0
    assert measured([ProvenBatch(0, 1.0)], 2.0) is None
    assert measured([ProvenBatch(1, 30.0)], 20.0) == Staleness(1, 0.0, 0.0), "a clock was set back"
    assert found.merged(Staleness(12, 0.0, 1.0)) == Staleness(16, 0.5, 3.0)

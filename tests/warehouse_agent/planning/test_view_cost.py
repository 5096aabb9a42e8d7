"""Which way of maintenance is taken, and how a wrong price is corrected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warehouse_agent.planning.view_cost import (
    FACTOR_LEAST,
    FACTOR_MOST,
    PHASES,
    ViewMethod,
    ViewWork,
    choose,
    learnt,
)

LARGE = ViewWork(6_000_000, 12, 50_000, 4, changed_rows=6_000)
SMALL = ViewWork(2_000, 3, 500, 1, changed_rows=5)


def seconds(work: ViewWork, method: ViewMethod, times: float) -> dict[str, float]:
    return {phase: work.default_s(phase) * times for phase in PHASES[method]}


def test_defaults() -> None:
    assert choose(LARGE, {}).method is ViewMethod.INCREMENTAL
    assert choose(SMALL, {}).method is ViewMethod.RECOMPUTE
    everything = replace(LARGE, changed_rows=6_000_000)
    assert choose(everything, {}).method is ViewMethod.RECOMPUTE
    crossed = replace(LARGE, whole_rows=12_000_000)
    assert choose(crossed, {}).method is ViewMethod.RECOMPUTE
    assert "incrementally and" in choose(LARGE, {}).why


def test_a_slow_machine_is_slow_in_both() -> None:
    learned = learnt({}, LARGE, seconds(LARGE, ViewMethod.RECOMPUTE, 7.0))
    assert learned == {"evaluate": pytest.approx(7.0)}
    found, before = choose(LARGE, learned), choose(LARGE, {})
    assert found.incremental_s == pytest.approx(7 * before.incremental_s)
    assert found.method is before.method


def test_an_outlier_is_forgotten() -> None:
    """Incremental maintenance took very long once; it is tried again after some recomputations."""
    learned = learnt({}, LARGE, seconds(LARGE, ViewMethod.INCREMENTAL, 40.0))
    learned |= {"evaluate": 1.0}
    tries = 0
    while choose(LARGE, learned).method is ViewMethod.RECOMPUTE:
        learned = learnt(learned, LARGE, seconds(LARGE, ViewMethod.RECOMPUTE, 1.0))
        tries += 1
        assert tries < 60
    assert tries > 3


def test_a_zero_and_a_phase_that_was_not_run_are_not_learned() -> None:
    assert learnt({}, LARGE, {"join": 0.0}) == {}


def test_bounds() -> None:
    found = {"join": 1e9 * LARGE.default_s("join"), "check": 1e-7 * LARGE.default_s("check")}
    learned = learnt({}, LARGE, found)
    assert learned == {
        "join": pytest.approx(FACTOR_MOST),
        "check": pytest.approx(FACTOR_LEAST),
    }

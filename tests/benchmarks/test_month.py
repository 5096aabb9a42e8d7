"""A simulated month of decisions: whatever is decided, no window and no interval is exceeded."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from driftline.settings.hours import WeekSpan

from benchmarks.decisions import month
from warehouse_agent.change_models.fit import fit
from warehouse_agent.change_models.memory import LearnedMemories


@pytest.mark.slow
def test_a_simulated_week_keeps_every_rule() -> None:
    found = month.simulate(fragments=30, sources=6, days=7)
    assert found.broken == []
    assert found.refreshes > 30 * 3
    assert found.decisions > found.refreshes


def test_a_broken_rule_is_found() -> None:
    """The check itself: a refresh at noon where the window is at night, and none for days."""
    one = month.made(fragments=5, sources=5, days=7, seed=2)[0]
    night = WeekSpan.parse("20:00-08:00")
    assert night is not None
    late = replace(one, allowed=(night,), began=[month.MONDAY + 12 * 3600])
    said = month.check(late, 1, month.MONDAY + 5 * 86_400)
    assert len(said) == 2
    assert "outside its window" in said[0]
    assert "was not refreshed for 108.0 h" in said[1]


@pytest.mark.soak
def test_a_fit_and_a_decision_are_quick() -> None:
    """Issue 19: 50 ms for 400 intervals, 1 ms for a decision once fitted; of this thread."""
    one = month.made(fragments=3, sources=1, days=1, seed=3)[2]
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert fit(one.memory, month.ZONE) is not None
        took.append(time.thread_time() - began)
    assert min(took) <= 0.05
    learned = LearnedMemories()
    one.decide(learned, month.MONDAY + 3600)
    began = time.thread_time()
    for minute in range(100):
        one.decide(learned, month.MONDAY + 3600 + 60 * minute)
    assert (time.thread_time() - began) / 100 <= 1e-3


@pytest.mark.soak
def test_a_simulated_month() -> None:
    """Issue 19: 500 fragments on 10 sources within 60 s of one processor, 1 ms a decision."""
    found = month.simulate()
    assert found.broken == []
    assert found.seconds <= 60
    assert found.seconds / found.decisions <= 1e-3

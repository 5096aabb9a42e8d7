"""The bound that policies of refreshing are compared with."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decisions.when import hindsight

events = st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 50)), min_size=1, max_size=7).map(
    sorted
)


@given(events, st.floats(0.1, 500))
def test_hindsight_is_the_least_of_all_choices(found: list[tuple[float, int]], m: float) -> None:
    """Against every set of refreshes after changes; no refresh elsewhere can cost less."""
    at, rows = zip(*found, strict=True)
    costs = []
    for chosen in itertools.product([False, True], repeat=len(at) - 1):
        seen = [t for t, is_one in zip(at, [*chosen, True], strict=True) if is_one]
        cost = m * len(seen)
        cost += sum(n * (min(r for r in seen if r >= t) - t) for t, n in found)
        costs.append(cost)
    assert hindsight(at, rows, m) == pytest.approx(min(costs))

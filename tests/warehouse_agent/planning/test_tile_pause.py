"""The pause between tiles: bounded, longer while answers are slow, and back when they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.tiling import (
    PAUSE_S_MAX,
    SLOWER,
    TILES_MIN,
    TILES_REMEMBERED,
    TilePause,
)

ROWS = 1000
PAUSES = st.floats(0.001, 200)
TILES = st.lists(st.tuples(st.integers(0, 3 * ROWS), st.floats(0, 1e6)), max_size=80)


@given(PAUSES, TILES)
def test_a_pause_is_never_shorter_than_configured_nor_without_end(
    pause_s: float, tiles: list[tuple[int, float]]
) -> None:
    pause = TilePause(ROWS, pause_s)
    assert pause.seconds == pause_s
    for rows, answered_s in tiles:
        assert pause_s <= pause.note(rows, answered_s) <= max(PAUSE_S_MAX, pause_s)


@given(PAUSES, st.lists(st.floats(1.0, SLOWER), min_size=1, max_size=80), st.floats(1e-6, 1e3))
def test_answers_that_vary_little_lengthen_nothing(
    pause_s: float, costs: list[float], unit: float
) -> None:
    """Whatever a row costs, and however many rows the tiles have."""
    pause = TilePause(ROWS, pause_s)
    for number, cost in enumerate(costs):
        rows = ROWS + number % 7
        assert pause.note(rows, cost * unit * rows) == pytest.approx(pause_s)


@given(st.integers(TILES_MIN, 60), st.integers(1, 8), st.floats(SLOWER * 1.01, 100))
def test_a_slow_database_is_left_alone_while_it_is_slow(
    before: int, slow: int, factor: float
) -> None:
    pause = TilePause(ROWS, 0.5)
    for _ in range(before):
        pause.note(ROWS, 1.0)
    seen = [pause.note(ROWS, factor) for _ in range(slow)]
    # As long as slow answers are fewer than half of those that are remembered.
    doubled = [min(0.5 * 2 ** (n + 1), PAUSE_S_MAX) for n in range(min(slow, before))]
    assert seen[: len(doubled)] == doubled
    back = [pause.note(ROWS, 1.0) for _ in range(10)]
    assert back == sorted(back, reverse=True)
    assert back[-1] == 0.5


def test_a_database_that_stays_slow_is_the_recent_past() -> None:
    pause = TilePause(ROWS, 0.5)
    for _ in range(2 * TILES_REMEMBERED):
        pause.note(ROWS, 1.0)
    found = [pause.note(ROWS, 9.0) for _ in range(2 * TILES_REMEMBERED)]
    assert max(found) == PAUSE_S_MAX
    assert found[-1] == 0.5


def test_small_tiles_say_nothing() -> None:
    pause = TilePause(ROWS, 0.5)
    for _ in range(9):
        pause.note(ROWS, 1.0)
    assert pause.note(3, 5.0) == 0.5
    pause.note(ROWS, 9.0)
    assert pause.note(3, 0.0) == 1.0

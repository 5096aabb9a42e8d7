"""Turns, under an injected clock."""

from __future__ import annotations

import pytest
from driftline.errors import NotNow

from source_agent.budgets.places import ClientTurns


def test_each_client_has_one_turn_in_so_many_seconds() -> None:
    now, every = [100.0], [60.0]
    turns = ClientTurns(lambda: every[0], lambda: now[0])
    turns.take("a")
    with pytest.raises(NotNow, match="once in 60 s") as caught:
        turns.take("a")
    assert caught.value.details == {"wait seconds": "60"}
    turns.take("b")
    now[0] = 159.5
    with pytest.raises(NotNow, match="Ask again in 1 s"):
        turns.take("a")
    now[0] = 160.0
    turns.take("a")
    every[0] = 5.0  # the DBA's file was read again
    now[0] = 165.0
    turns.take("a")


def test_a_refused_turn_does_not_put_off_the_next() -> None:
    now = [0.0]
    turns = ClientTurns(lambda: 10.0, lambda: now[0])
    turns.take("a")
    for second in range(1, 10):
        now[0] = float(second)
        with pytest.raises(NotNow):
            turns.take("a")
    now[0] = 10.0
    turns.take("a")

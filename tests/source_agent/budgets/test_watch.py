"""When a silent database counts as dead: the decision alone, on a clock of the test.

Real servers that stop, hang or are slow are in `test_dead_databases`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from source_agent.budgets.watch import PROBE_AFTER_S, PROBE_S, SessionWatch
from source_agent.engines.interface import Limits, Pulse, Session


@dataclass
class Silent:
    """A session from which nothing comes, of a server whose login takes `login_s`."""

    login_s: float
    asked: list[float] = field(default_factory=list)
    pulse: Any = None

    def answers(self, within_s: float) -> bool:
        self.asked.append(within_s)
        return self.login_s <= within_s


def dead_after(session: Silent, silent_s: float, limits: Limits) -> bool:
    """Return whether the watch gives the session up after so many seconds of silence."""
    now = [100.0]
    session.pulse = Pulse()
    session.pulse.at = now[0]
    watch = SessionWatch(cast(Session, session), limits, clock=lambda: now[0])
    with watch.waiting():
        now[0] += silent_s
        return watch.dead() is not None


@pytest.mark.parametrize("login_s", [0.1, PROBE_S, PROBE_S + 0.1, 9.9])
def test_a_server_whose_logins_are_slow_is_alive(login_s: float) -> None:
    assert not dead_after(Silent(login_s), PROBE_AFTER_S, Limits(connect_s=10.0))


def test_a_server_that_takes_longer_than_a_connection_may_is_dead() -> None:
    session = Silent(10.1)
    assert dead_after(session, PROBE_AFTER_S, Limits(connect_s=10.0))
    assert session.asked == [PROBE_S, 10.0]


def test_a_short_limit_for_connections_does_not_shorten_a_probe() -> None:
    assert not dead_after(Silent(PROBE_S), PROBE_AFTER_S, Limits(connect_s=2.0))


def test_nobody_is_asked_before_it_is_time() -> None:
    session = Silent(1e9)
    assert not dead_after(session, PROBE_AFTER_S - 0.1, Limits())
    assert session.asked == []


def test_a_server_that_answers_is_waited_for_and_then_it_is_not() -> None:
    limits = Limits(silence_s=60.0)
    assert not dead_after(Silent(0.1), 59.9, limits)
    assert dead_after(Silent(0.1), 60.0, limits)

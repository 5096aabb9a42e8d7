"""Remedies for limits of the source: once the time or the place that each names is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from driftline.errors import DatabaseRefused, NotNow

from source_agent.budgets.places import ClientTurns, fixed_places
from source_agent.engines.conformance.reads import Read, rows_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from tests.remedies.told import told
from tests.source_agent.engines.dump.folders import Accounts


def test_a_turn_that_comes_too_early() -> None:
    now = 1000.0
    turns = ClientTurns(lambda: 60.0, lambda: now)
    turns.take("a")
    now += 17.4
    with pytest.raises(NotNow) as caught:
        turns.take("a")
    now += int(told(caught.value, "Ask again in … s.").split()[3])
    turns.take("a")


def test_places_that_are_taken() -> None:
    places = fixed_places("calls", 2, 1)
    with places.taken("a"), pytest.raises(NotNow) as caught, places.taken("a"):
        raise AssertionError("there is one for each client")
    told(caught.value, "Run the command again when others have ended.")
    with places.taken("a"):
        pass


def test_a_dump_that_takes_too_long(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, '[columns]\nid = "int8"\n')
    accounts.put(b"id\n1\n")

    def within(seconds: float) -> list[Read]:
        engine = connect(f"dump:///{tmp_path}", None, Limits(statement_s=seconds))
        session = engine.open()
        try:
            return rows_of(session, session.describe(accounts.relation))
        finally:
            session.close()

    with pytest.raises(DatabaseRefused) as caught:
        within(1e-9)
    told(caught.value, "Raise `statement_timeout_s`.")
    assert within(60.0) == [["1"]]

"""A refresh says what its steps usually take, from the history of its own fragment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.events import PhasesExpected, PhaseStarted
from warehouse_agent.planning.time_left import STEPS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(50)])
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        yield made
    legacy.close()


def test_it_says_so_before_the_source_is_asked(pair: Pair) -> None:
    assert not [one for one in pair.heard("t").events if isinstance(one, PhasesExpected)]
    took = list[dict[str, float]]()
    for number in range(3):
        pair.legacy.execute("UPDATE t SET note = ? WHERE id < 5", f"changed {number}")
        heard = pair.heard("t")
        (expected,) = [one for one in heard.events if isinstance(one, PhasesExpected)]
        exchange = heard.events.index(PhaseStarted("t", "exchange"))
        assert heard.events.index(expected) < exchange
        assert set(expected.seconds) == {*STEPS}
        if took:
            earlier = sorted(one["exchange"] for one in took)
            assert earlier[0] <= expected.seconds["exchange"] <= earlier[-1]
        took.append(heard.report.seconds)

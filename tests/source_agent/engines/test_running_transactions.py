"""How long a transaction is known to be open, from the numbers in the snapshots of refreshes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from source_agent.engines.relations.markers import EarlierSnapshot, RunningTransactions

START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Transactions:
    """A server's: `began` has the time of each that is open, by its number."""

    began: dict[int, int]
    number: int = 100
    over: int = 99  # the greatest that is over

    def snapshot(self) -> RunningTransactions:
        """As PostgreSQL makes it: a number above all that are over is not known to be given."""
        behind = self.over + 1
        return RunningTransactions(
            min([n for n in self.began if n < behind], default=behind), behind
        )


def at(second: int) -> str:
    return (START + timedelta(seconds=second)).isoformat()


@pytest.mark.parametrize("seed", range(30))
def test_no_transaction_is_said_to_be_older_than_it_is(seed: int) -> None:
    """Nor younger than the first of the snapshots that all showed it as the oldest."""
    rng, server = random.Random(seed), Transactions({})
    before: EarlierSnapshot | None = None
    seen: dict[int, int] = {}  # the first snapshot that showed a transaction as the oldest
    told = 0
    for now in range(400):
        if rng.random() < 0.5:
            server.began[server.number] = now
            server.number += 1
        if server.began and rng.random() < 0.5:
            gone = rng.choice(sorted(server.began)[rng.choice([0, -1]) :])
            server.over = max(server.over, gone)
            del server.began[gone]
        if rng.random() < 0.4:
            running = server.snapshot()
            since = running.open_since(at(now), before)
            if running.oldest < running.next:
                began = server.began[running.oldest]
                assert at(began) <= since <= at(seen.setdefault(running.oldest, now))
                told += since < at(now)
            else:
                assert since == at(now)
            before = EarlierSnapshot(running, at(now), since)
    assert told > 5

"""Random histories of deletes and inserts that no marker shows, found in the same refresh.

A history is what writers do to a small table between two refreshes: rows come with old times, with
none, or go, or go and come again; some updates set the time and some do not. Many histories are
told to one pair of agents, each by a refresh of its own, with cells and a salt of its own. The
oracle is the owner's own connection.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy
from tests.pair.since.rig import OLD, Stock, by_time, counts, now, of
from warehouse_agent.planning import sketch_size

HISTORIES = 100  # of one pair of agents
SAMPLE = 12  # of these in the default run
PAIRS = 100  # of a soak: 10,000 histories for each engine
ROWS = 60
FAR = 2**62  # keys up to this: most lie outside of those that the warehouse has
SEEDS = [
    pytest.param(0, SAMPLE, id="sample"),
    *(
        pytest.param(seed, HISTORIES, marks=pytest.mark.soak, id=f"{seed}")
        for seed in range(1, PAIRS + 1)
    ),
]


@pytest.fixture
def stock(legacy: Legacy, tmp_path: Path) -> Iterator[Stock]:
    """Yield a table of few rows."""
    made = Stock(legacy, tmp_path / "pair", by_time(legacy), rows=ROWS)
    yield made
    made.pair.stop()


class Writers:
    """What they did to a table: `lied` are rows whose update no time shows.

    `by_marker` counts the refreshes that compared keys, and not the values of all rows.
    """

    def __init__(self, stock: Stock, rng: random.Random) -> None:
        self.stock, self.rng = stock, rng
        self.lied: set[int] = set()
        self.by_marker = 0

    def some(self, keys: list[int], most: int) -> list[int]:
        return self.rng.sample(keys, min(len(keys), self.rng.randrange(most + 1)))

    def amount(self) -> int:
        return self.rng.randrange(1000, 2**31)

    def live(self) -> None:
        """Change the table as one history."""
        rng, legacy = self.rng, self.stock.legacy
        present = sorted(row[0] for row in legacy.rows("stock"))
        rng.shuffle(present)
        gone, again = self.some(present[:20], 6), self.some(present[20:30], 2)
        honest, lies = self.some(present[30:40], 4), self.some(present[40:50], 2)
        free = {rng.randrange(-3 * ROWS, 6 * ROWS) for _ in range(rng.randrange(5))}
        free |= {rng.randrange(-FAR, FAR) for _ in range(rng.randrange(3))}
        if len(present) < ROWS:
            free |= {rng.randrange(6 * ROWS) for _ in range(4)}
        new = sorted(free - set(present))
        self.stock.delete([*gone, *again])
        times = [of(legacy, OLD), of(legacy, "1999-12-31 23:59:59"), None]
        rows: list[tuple[Any, ...]] = [
            (key, self.amount(), "new", rng.choice(times), 0, False) for key in (*new, *again)
        ]
        rng.shuffle(rows)
        legacy.many("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?)", rows)
        at = now(legacy)
        told = [(self.amount(), at, key) for key in honest]
        legacy.many("UPDATE stock SET amount = ?, updated_at = ? WHERE id = ?", told)
        silent = [(self.amount(), key) for key in lies]
        legacy.many("UPDATE stock SET amount = ? WHERE id = ?", silent)
        self.lied |= {*lies, *again}

    def check(self) -> None:
        """Refresh, and compare with the owner's rows: all keys, and the values of all but lies."""
        ours = {row[0]: row[1] for row in self.stock.published()}
        report = self.stock.refresh()
        theirs = {row[0]: row[1] for row in self.stock.legacy.rows("stock")}
        after = {row[0]: row[1] for row in self.stock.published()}
        assert report.proof in {"keys", "total"}, "all rows, where more changed than was expected"
        self.by_marker += report.proof == "keys"
        assert after.keys() == theirs.keys()
        wrong = {key for key in theirs if after[key] != theirs[key]}
        assert wrong <= (self.lied if report.proof == "keys" else set())
        self.lied = wrong
        inserted, _, deleted = counts(report)
        assert (inserted, deleted) == (len(theirs.keys() - ours), len(ours.keys() - theirs.keys()))


@pytest.mark.parametrize(
    "engine",
    ["sqlite", *(pytest.param(e, marks=pytest.mark.soak) for e in ("postgresql", *FAMILY))],
)
@pytest.mark.parametrize("per_row", [1, 4])
def test_keys_that_share_a_k_do_not_hide_from_each_other(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, per_row: int
) -> None:
    """With few k for each row, keys vanish below rows that came, in every refresh."""
    monkeypatch.setattr(sketch_size, "ROWS_PER_BUCKET", 1 / per_row)
    writers = Writers(stock, random.Random(f"{stock.legacy.engine} {per_row}"))
    stock.insert([-FAR, FAR])  # so that keys are hashed
    stock.refresh()
    for _ in range(8):
        writers.live()
        writers.check()
    assert writers.by_marker >= 1


@pytest.mark.parametrize(("seed", "histories"), SEEDS)
def test_random_histories(stock: Stock, seed: int, histories: int) -> None:
    """Deletes and inserts are found at once, and what a time did not show by the next audit."""
    writers = Writers(stock, random.Random(f"{stock.legacy.engine} {seed}"))
    stock.refresh()
    for _ in range(histories):
        writers.live()
        writers.check()
    # What is expected to change, and so the size of the sketch, is learnt from measured times.
    assert writers.by_marker > histories / 3
    stock.fragment('audit = "1s"')
    audit = stock.refresh_when_due()
    assert audit.audit is not None
    assert (audit.proof, audit.audit["missed"]) == ("total", len(writers.lied))
    assert set(map(int, audit.audit["keys"])) <= writers.lied
    stock.check()

"""How many bytes refreshes of small tables take, and how balanced the forecast is, by simulation.

    python -m benchmarks.decisions.sizes [--refreshes 150] [--seeds 4]

A history is a list of numbers of changes, one a day. One step ahead, `expect` forecasts the next
from those before it, `sizing` decides how many cells go first, and `candidates` says what bytes and
round trips the refresh then takes that finds the number which came: the decisions of the product
without its input and output, a thousand refreshes in seconds. `exchanged` takes a history through
the product's two agents instead (a SQLite file, real messages), which the model is checked against.

The table has ROWS rows of some 60 bytes on the line. Bytes are all messages of both directions; the
floor is the changed rows under zstd and log2 C(n, d) bits. Shapes are drawn from a fixed seed:
Poisson, overdispersed, a change of regime, idle days, and bulk changes once, at times and every
week.

Balance is measured by the randomised probability integral transform (Smith, J. Forecasting 4, 1985;
Czado, Gneiting, Held, Biometrics 65, 2009): u = P(fewer than d) + V·P(d), V uniform in 0..1, is
uniform if the forecast is right, also for small whole numbers and idle days. `below` and `above`
are the expected shares with u < 10 % and u > 90 %, so no random number is drawn. Counting d below
`low` and above `high` would call every forecast of an idle table one-sided: below 0 is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click
import numpy as np
import numpy.typing as npt

from benchmarks.floor import floor_bytes
from benchmarks.replay.commits import Warehouse
from benchmarks.replay.results import Record
from benchmarks.replay.sides import Source, line_of
from tests.harness.histories import Commit, History, Row
from warehouse_agent.change_models import operational_time
from warehouse_agent.methods.registry import refreshes
from warehouse_agent.planning import choice
from warehouse_agent.planning.change_forecast import (
    HISTORY_MAX,
    ChangeForecast,
    RefreshOutcome,
    expect,
)
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.prices import Prices

ROWS, DAY_S = 10_000, 86_400.0
REFRESHES = 150
SEEDS = 4
WARM_AFTER = 10  # refreshes
PRICES = Prices(row=64.0, few=64.0, copied=50.0)
FLOOR_ROW_BYTES = 58.0
TAIL = 0.1
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Refresh:
    """One simulated refresh: what was expected, what came, and what it took."""

    expected: ChangeForecast
    changed: int
    bytes: float
    floor_bytes: float
    round_trips: int

    @property
    def ratio(self) -> float:
        """Bytes over the floor; meaningless where nothing changed."""
        return self.bytes / max(self.floor_bytes, 1)


def shapes(seed: int, refreshes: int = REFRESHES) -> dict[str, list[int]]:
    """Return numbers of changes by name of the shape; around 50 a day unless the name differs."""
    rng, n = np.random.default_rng(seed), refreshes

    def dispersed(mean: float, size: float) -> npt.NDArray[np.int64]:
        return rng.negative_binomial(size, size / (size + mean), n)

    usual = rng.poisson(50, n)
    once, weekly, monthly = usual.copy(), usual.copy(), usual.copy()
    once[n // 5] = 3000
    weekly[::7] = rng.poisson(1500, len(weekly[::7]))
    monthly[10::20] = rng.poisson(1000, len(monthly[10::20]))
    mixed = np.where(rng.random(n) < 0.05, rng.poisson(2000, n), dispersed(50, 8))
    shifted = np.where(np.arange(n) < n // 2, rng.poisson(25, n), rng.poisson(90, n))
    idle = np.where(rng.random(n) < 0.5, 0, rng.poisson(50, n))
    by_shape: dict[str, npt.NDArray[np.generic]] = {
        "Poisson": usual,
        "overdispersed": dispersed(50, 5),
        "log-normal": np.round(np.exp(rng.normal(math.log(50), 0.5, n))),
        "half of the days idle": idle,
        "25, then 90": shifted,
        "one bulk change": once,
        "bulk every week": weekly,
        "bulk every 20th": monthly,
        "bulk at times": mixed,
    }
    return {name: [int(d) for d in changes] for name, changes in by_shape.items()}


def daily(changes: Sequence[int], rows: int = ROWS) -> list[RefreshOutcome]:
    """Return a history of updates, one refresh a day."""
    return [RefreshOutcome(DAY_S, rows, 0, changed, 0) for changed in changes]


def simulated(
    history: Sequence[RefreshOutcome],
    line: Line,
    *,
    start: datetime = START,
    has_model: bool = True,
) -> list[Refresh]:
    """Return what each refresh takes by the model of costs, from the second on.

    Args:
        start: of the first interval.
        has_model: forecast by the model of change; else by elapsed time.
    """
    runs, ends = [], ends_of(history, start)
    for at in range(1, len(history)):
        now, recent = history[at], slice(max(at - HISTORY_MAX, 0), at)
        before, last = history[recent], ends[at - 1]
        if has_model:
            expected = operational_time.expect(
                before, ends[recent], rows=now.rows, last=last, now=ends[at], zone="UTC"
            )
        else:
            expected = expect(before, rows=now.rows, elapsed_s=now.elapsed_s)
        known = _known(now.rows, line)
        candidates, chosen = refreshes(known, expected, max(now.changed, 1), with_rivals=False)
        taken = next(c for c in candidates if c.what == chosen) if now.changed else candidates[0]
        assert taken.bytes is not None
        floor = choice.floor_bytes(now.rows, now.changed, FLOOR_ROW_BYTES)
        runs.append(Refresh(expected, now.changed, taken.bytes, floor, taken.round_trips))
    return runs


def ends_of(history: Sequence[RefreshOutcome], start: datetime) -> list[datetime]:
    """Return when each refresh is, in UTC, [n]."""
    elapsed_s = accumulate(one.elapsed_s for one in history)
    return [start + timedelta(seconds=s) for s in elapsed_s]


def _known(rows: int, line: Line) -> PlanInputs:
    bounds = (1, 2 * rows)
    knots = [bounds[0] + (bounds[1] - bounds[0]) * i // choice.QUANTILES for i in range(65)]
    return PlanInputs(
        name="t",
        version=1,
        rows=rows,
        rows_expected=None,
        prices=PRICES,
        partition=choice.partition_for(knots, rows, integer_key=True),
        integer_key=True,
        bounds=bounds,
        line=line,
        now=START,
        forced=None,
        read_at_most=None,
        earlier=(),
    )


class Table(History):
    """A table as `replay.sides.Source` wants it, whose rows are drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.name, self.key, self.columns = "drawn", ["id"], ["id", "price", "note"]
        self.types, self._key_places = ["INTEGER", "DOUBLE", "VARCHAR"], [0]
        self._random = Random(seed)

    def row(self, number: int) -> Row:
        """Return a new image of the row of this number."""
        random = self._random
        return (2 * number, random.randrange(10**6) / 100, f"order {random.randbytes(46).hex()}")

    def commit(self, number: int, changed: int, rows: int) -> Commit:
        """Return so many updates of random rows."""
        chosen = sorted(self._random.sample(range(rows), changed))
        return Commit(number, updates=[self.row(each) for each in chosen])


def exchanged(changes: Sequence[int], line: Line, *, rows: int, seed: int) -> Iterator[Record]:
    """Yield what each refresh takes between the two agents, one after a load and then for every
    number of changes: so many updates a day of a SQLite table of `rows` rows."""
    table = Table(seed)
    first = [table.row(number) for number in range(rows)]
    with (
        TemporaryDirectory() as folder,
        closing(Source(Path(folder) / "erp.db", table, first)) as erp,
    ):
        with closing(erp.open()) as session:
            shape = session.describe(erp.relation)
            warehouse = Warehouse(shape.recipe, line)
            warehouse.refresh(session, shape, START, 0)
        for number, changed in enumerate(changes, start=1):
            commit = table.commit(number, changed, rows)
            erp.edit(commit)
            at = START + timedelta(days=number)
            with closing(erp.open()) as session:
                record = warehouse.refresh(session, session.describe(erp.relation), at, number)
            assert record.changed == changed
            floor = floor_bytes(map(line_of, commit.updates), rows=rows, changed=changed)
            yield replace(record, floor_bytes=floor)


@dataclass(frozen=True, slots=True)
class Balance:
    """Shares of the refreshes: expected in the lower and the upper 10 % of the forecast, and
    counted below and above the 80 % interval."""

    below: float
    above: float
    missed_below: float
    missed_above: float

    @property
    def coverage(self) -> float:
        """Share of the refreshes within the 80 % interval."""
        return 1 - self.missed_below - self.missed_above


def balance(forecasts: Iterable[tuple[ChangeForecast, int]]) -> Balance:
    """Return where the numbers of changes that came lie in their forecasts."""
    positions = []
    for expected, d in forecasts:
        fewer, upto = 1 - expected.survival(d - 1), 1 - expected.survival(d)
        width = max(upto - fewer, 1e-300)
        below = min(max((TAIL - fewer) / width, 0), 1)
        above = min(max((upto - (1 - TAIL)) / width, 0), 1)
        positions.append((below, above, d < expected.low, d > expected.high))
    return Balance(*(float(share) for share in np.mean(positions, axis=0)))


@click.command()
@click.option("--refreshes", default=REFRESHES, show_default=True, help="Of a history.")
@click.option("--seeds", default=SEEDS, show_default=True, help="Histories of a shape.")
def main(refreshes: int, seeds: int) -> None:
    """Print a table for both objectives, summed over the seeds."""
    print("| changes a day | objective | bytes ÷ floor: median, 90 % | one round trip ", end="")
    print("| in the lower, upper 10 % | within the interval |")
    print("|---|---|---|---|---|---|")
    for name in shapes(0):
        histories = [daily(shapes(seed, refreshes)[name]) for seed in range(seeds)]
        for objective in Objective:
            line = Line(objective=objective, is_brief=True)
            runs = [r for history in histories for r in simulated(history, line)[WARM_AFTER:]]
            ratios = [r.ratio for r in runs if r.changed]
            told = balance((r.expected, r.changed) for r in runs)
            single = float(np.mean([r.round_trips == 1 for r in runs]))
            print(
                f"| {name} | {objective.value} | {np.median(ratios):.2f}, "
                f"{np.quantile(ratios, 0.9):.2f} | {single:.1%} "
                f"| {told.below:.1%}, {told.above:.1%} | {told.coverage:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Forecasts of daily refreshes of tables that change by the rhythm of a week, or of a season.

    python -m benchmarks.decisions.rhythms [--days 400] [--seeds 2] [--history few]

Each day is forecast from the days before it only, by elapsed time and by the model of change
(`change_models.operational_time`); the sketch, its bytes and its round trips are the product's
decisions, as in `benchmarks.decisions.sizes`, whose floor it has too. The two real histories
(`benchmarks.decisions.expect`) are refreshed daily; they have no rhythm that counts show. Three are
drawn from a seed: an office with hardly a change on Sundays; few changes, by an office (Poisson);
a shop with its weekends and two seasons a year, of which the busy one changes ten times as much.

A day counts as inside by the share of its own probability that lies between the 10 % and the 90 %
of the forecast (the randomised transform of `sizes`, without drawing): whole numbers as small as
those of a Sunday cannot be split at 10 %. `p` is the two-sided binomial probability of so many days
inside, of 80 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click
import numpy as np
from driftline.arrays import Floats

from benchmarks.decisions.expect import HISTORIES, Schedule, load_s_of, pasts
from benchmarks.decisions.sizes import Refresh, balance, daily, ends_of, simulated
from tests.harness.histories import available
from warehouse_agent.planning.change_forecast import RefreshOutcome
from warehouse_agent.planning.network import Line

START = datetime(2024, 1, 1, 4, tzinfo=UTC)  # a Monday, at an hour of nightly jobs
DAYS, SEEDS = 400, 2
WARM_AFTER = 30  # days: a week has to be seen some times
INSIDE = 0.8
# Of Monday to Sunday, over the mean of a busy day.
OFFICE = (1.0, 1.0, 1.0, 1.0, 1.0, 0.15, 0.05)
SHOP = (0.6, 0.6, 0.7, 0.8, 1.2, 2.2, 1.6)
SEASON_DAYS, SEASON = 180.0, 1.15  # the period, and the amplitude of ln of the rate
KINDS = ("workdays", "Saturdays", "Sundays")


@dataclass(frozen=True, slots=True)
class Replayed:
    """Refreshes of one history, and the kind of day that each interval lies in."""

    refreshes: Sequence[Refresh]
    kinds: Sequence[str]

    @property
    def inside(self) -> Floats:
        """The share of each day inside the forecast's 80 %, [n]."""
        told = (balance([(one.expected, one.changed)]) for one in self.refreshes)
        return np.array([1 - one.below - one.above for one in told])

    def row(self) -> str:
        """Return the columns of the table."""
        ratios = [one.ratio for one in self.refreshes if one.changed]
        single = float(np.mean([one.round_trips == 1 for one in self.refreshes]))
        loss = -np.mean([one.expected.log_probability(one.changed) for one in self.refreshes])
        by_kind, inside = [], self.inside
        for kind in KINDS:
            some = inside[np.array(self.kinds) == kind]
            by_kind.append(f"{some.mean():.1%} ({len(some)}; {p_value(some):.2f})")
        return (
            f"{np.median(ratios):.2f}, {np.quantile(ratios, 0.9):.2f} | {single:.1%} "
            f"| {loss:.3f} | {inside.mean():.1%} | {' | '.join(by_kind)}"
        )


def p_value(inside: Floats) -> float:
    """Return the two-sided binomial probability of so many days inside, [n], of INSIDE."""
    n = len(inside)
    some = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(INSIDE)
        + (n - k) * math.log1p(-INSIDE)
        for k in range(n + 1)
    ]
    found = some[round(inside.sum())] + 1e-9
    return min(sum(math.exp(one) for one in some if one <= found), 1.0)


def made(seed: int, days: int = DAYS) -> dict[str, list[RefreshOutcome]]:
    """Return daily histories with a rhythm, by name."""
    rng, day = np.random.default_rng(seed), np.arange(days)
    office, shop = np.array(OFFICE)[day % 7], np.array(SHOP)[day % 7]
    season = np.exp(SEASON * np.sin(2 * np.pi * day / SEASON_DAYS))

    def dispersed(mean: Floats, size: float) -> list[int]:
        return [int(d) for d in rng.negative_binomial(size, size / (size + mean))]

    return {
        "office": daily(dispersed(120 * office, 8)),
        "few": daily([int(d) for d in rng.poisson(12 * office)]),
        "shop and season": daily(dispersed(100 * shop * season, 10)),
    }


def histories(days: int, seeds: int) -> dict[str, list[tuple[list[RefreshOutcome], datetime]]]:
    """Return all histories, with the start of each; the real ones if they are there."""
    found: dict[str, list[tuple[list[RefreshOutcome], datetime]]] = {}
    for name in HISTORIES if all(map(available, HISTORIES)) else ():
        start = datetime.fromtimestamp(load_s_of(name), UTC)
        found[name] = [(pasts(name, Schedule.DAILY)[: 3 * days], start)]
    for seed in range(seeds):
        for name, history in made(seed, days).items():
            found.setdefault(name, []).append((history, START))
    return found


def replayed(
    drawn: Sequence[tuple[list[RefreshOutcome], datetime]], *, has_model: bool
) -> Replayed:
    """Return the refreshes of histories of one kind, after WARM_AFTER days."""
    refreshes, kinds = list[Refresh](), list[str]()
    for history, start in drawn:
        runs = simulated(history, Line(is_brief=True), start=start, has_model=has_model)
        middles = (at - timedelta(hours=12) for at in ends_of(history, start)[1:])
        refreshes += runs[WARM_AFTER:]
        kinds += [KINDS[max(at.weekday() - 4, 0)] for at in middles][WARM_AFTER:]
    return Replayed(refreshes, kinds)


@click.command()
@click.option("--days", default=DAYS, show_default=True, help="Of a history; thrice if real.")
@click.option("--seeds", default=SEEDS, show_default=True, help="Histories of a made kind.")
@click.option("--history", multiple=True, help="By default, all.")
def main(days: int, seeds: int, history: tuple[str, ...]) -> None:
    """Print the table."""
    print("| history | forecast by | bytes ÷ floor: median, 90 % | one round trip | nats ", end="")
    print(f"| inside the 80 % | {' | '.join(f'{kind} (days; p)' for kind in KINDS)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, drawn in histories(days, seeds).items():
        if history and name not in history:
            continue
        for has_model in (False, True):
            by = "the model" if has_model else "elapsed time"
            print(f"| {name} | {by} | {replayed(drawn, has_model=has_model).row()} |", flush=True)


if __name__ == "__main__":
    main()

"""Where steps are fastest: whole refreshes in the driver's threads, on Spark, and as chosen.

    python -m benchmarks.reloads.step_places
    python -m benchmarks.reloads.step_places --cores 1 --cores 2 --view --json places.json
    python -m benchmarks.reloads.step_places --master spark://127.0.0.1:7077

TPC-H's lineitem in a PostgreSQL on loopback: a first load, a refresh that finds nothing, and ones
that find a share of the rows updated; with `--view` also a view that is made of the table. Each is
a command of its own, from a copy of the same version, once in each place and round, the first of
them another one each time; what is published is compared with the source. `--cores` binds the
command to so many processors, which is also how many tasks of a local Spark run at once. With
`--master` the master is another one, such as that of a standalone cluster that runs already.

Printed are seconds from command to exit, processor seconds of its processes, and seconds of each
phase: the least of the rounds; and what `planning.step_places` predicted for the phases that it
placed by seconds. Nothing else should run on the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks import meter
from benchmarks.reloads.contents import UnequalError, compare
from benchmarks.reloads.ours import Checkout, Refreshed
from benchmarks.reloads.place import FailedError, Source
from tests import ROOT
from tests.harness.servers import PostgreSQL

TABLE = "lineitem"
PLACES = {"threads": f"small_bytes = {1 << 50}", "Spark": "small_bytes = 0", "chosen": ""}
LOAD, NOTHING = "load", "nothing"
_VIEW = f"""
[views.late]
query = "SELECT l_orderkey, l_linenumber, l_shipdate, l_extendedprice FROM {TABLE} \
WHERE l_receiptdate > l_commitdate"
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A refresh in one place. `phases`: seconds; `predicted`: what was said of them."""

    step: str
    cores: int
    place: str
    wall_s: float
    cpu_s: float
    phases: Mapping[str, float]
    places: Mapping[str, str]
    predicted: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, step: str, cores: int, place: str, done: Refreshed) -> Measured:
        """Return what a refresh cost, views included."""
        reports = [done.report, *done.views]
        phases = {
            f"{'' if number == 0 else 'view '}{phase}": seconds
            for number, report in enumerate(reports)
            for phase, seconds in report["seconds"].items()
        }
        report, cost = done.report, done.cost
        places, why = report["places"], report["places_why"]
        return cls(step, cores, place, cost.wall_s, cost.cpu_s, phases, places, why)

    def line(self) -> str:
        """Return it as a line of the table."""
        phases = " ".join(f"{name} {s:.1f}" for name, s in self.phases.items() if s >= 0.05)
        ran = " ".join(f"{phase}:{place}" for phase, place in self.places.items())
        return (
            f"{self.step:8} {self.cores} cores  {self.place:8} {self.wall_s:6.1f} s "
            f" processor {self.cpu_s:6.1f} s  {phases}  [{ran}]"
        )


class Checkouts:
    """A new checkout for each place and number of cores."""

    def __init__(self, folder: Path, source: Source, *, master: str | None, has_view: bool) -> None:
        self._folder, self._source, self._master = folder, source, master
        self._more = _VIEW if has_view else ""
        self._count = 0

    def checkout(self, place: str, cores: int) -> Checkout:
        """Return a new one, to be entered."""
        self._count += 1
        master = self._master or f"local[{cores}]"
        settings = f'{PLACES[place]}\n[spark]\n"spark.master" = "{master}"\n{self._more}'
        words = ["taskset", "-c", f"0-{cores - 1}"]
        folder = self._folder / f"{self._count}"
        return Checkout(place, ROOT, folder, self._source, settings=settings, words=words)


def measure(
    side: Checkouts,
    source: Source,
    cores: Sequence[int],
    names: Sequence[str],
    shares: Sequence[float],
    rounds: int,
) -> list[Measured]:
    """Measure every step in every place; print each as it comes.

    Raises:
        FailedError, UnequalError: a refresh ended badly, or published something else.
    """
    found: list[Measured] = []

    def took(step: str, count: int, place: str, done: Refreshed) -> None:
        compare(f"{place}, {step},", done.contents, source.contents)
        found.append(Measured.of(step, count, place, done))
        print(found[-1].line(), flush=True)

    for turn, count in product(range(rounds), cores):
        first = turn % len(names)
        for place in (*names[first:], *names[:first]):
            source.load(TABLE)
            with side.checkout(place, count) as checkout:
                took(LOAD, count, place, checkout.load())
                took(NOTHING, count, place, checkout.refresh(0))
                for share in shares:
                    changed = source.update(share / 100)
                    took(f"{share:g} %", count, place, checkout.refresh(changed))
                    checkout.keep()
    return found


def summary(found: Sequence[Measured]) -> str:
    """Return the least of the rounds of each step, and the least predicted beside it."""
    lines = []
    for step, cores, place in dict.fromkeys((m.step, m.cores, m.place) for m in found):
        same = [m for m in found if (m.step, m.cores, m.place) == (step, cores, place)]
        best = min(same, key=lambda m: m.wall_s)
        lines.append(best.line())
        for phase, why in best.predicted.items():
            if why["driver_s"] is not None:
                lines.append(
                    f"{'':10}{phase}: {why['bytes']:,} bytes, {best.phases.get(phase, 0.0):.1f} s;"
                    f" predicted {why['why']}"
                )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--scale", default=0.5, show_default=True, help="0.5: 3,000,000 rows.")
@click.option("--share", "shares", default=(0.1, 1.0, 10.0), multiple=True, show_default=True)
@click.option("--cores", "cores", type=click.IntRange(1), multiple=True, help="Default: all.")
@click.option("--place", "places", multiple=True, type=click.Choice([*PLACES]), default=[*PLACES])
@click.option("--master", help="A master URL in place of a local one.")
@click.option("--view", "has_view", is_flag=True, help="Also a view of the table.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    scale: float,
    shares: Sequence[float],
    cores: Sequence[int],
    places: Sequence[str],
    master: str | None,
    has_view: bool,
    rounds: int,
    file: Path | None,
) -> None:
    meter.adopt_orphans()
    with TemporaryDirectory() as made, PostgreSQL(autovacuum="off") as server:
        source = Source(server, scale)
        side = Checkouts(Path(made), source, master=master, has_view=has_view)
        try:
            counts = [*cores] or [os.cpu_count() or 1]
            found = measure(side, source, counts, places, shares, rounds)
        except (FailedError, UnequalError) as error:
            raise click.ClickException(str(error)) from None
    print(f"\nleast of {rounds}:\n{summary(found)}")
    if file is not None:
        file.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()

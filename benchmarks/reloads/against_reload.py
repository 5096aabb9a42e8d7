"""A refresh against reloading the table: whole commands, in turn, on the same source and change.

    python -m benchmarks.reloads.against_reload --before ../before --json reloads.json
    python -m benchmarks.reloads.against_reload --table orders --scale 0.002 --rounds 1 --peer copy

TPC-H tables in a PostgreSQL on loopback. Of each: a first load, a refresh that finds nothing, and
refreshes of a share of the rows, updated at scattered keys in a table that was made anew. In each
round of a step every tool runs once, the first of them another one each time. Driftline begins each
refresh with a copy of the same published version, has the default settings, and mutual TLS; with
`--before` another checkout does the same. Peers load all, as `peers` says.

After each run what the tool wrote is compared with the source: the number of rows, and a hash of
all values. What is not equal ends the benchmark. What cannot be installed is left out LOUDLY: a
table without a peer says nothing about that peer. Nothing else should run on the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import meter
from benchmarks.peers.matrix import here
from benchmarks.reloads.contents import Contents, UnequalError, compare
from benchmarks.reloads.ours import Checkout, Refreshed
from benchmarks.reloads.peers import PEERS, Reload
from benchmarks.reloads.place import FailedError, Source
from benchmarks.reloads.results import BEFORE, LOAD, NOTHING, OURS, Measurement, Run, dump, updated
from tests import ROOT
from tests.harness.servers import PostgreSQL

TABLES = ("lineitem", "orders")
Turn = Callable[[str], Run]  # a tool that runs once in a step


class Comparison:
    """The tools that take part, and what they did with one table."""

    def __init__(
        self, source: Source, folder: Path, trees: dict[str, Path], peers: Sequence[Reload]
    ) -> None:
        self._source, self._folder = source, folder
        self._trees, self._peers = trees, peers
        self.runs: list[Run] = []

    def measure(self, table: str, shares_percent: Sequence[float], rounds: int) -> int:
        """Run all steps of a table; return its rows."""
        rows = self._source.load(table)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(Checkout(name, tree, self._folder / name, self._source))
                for name, tree in self._trees.items()
            ]
            for peer in self._peers:
                (self._folder / peer.name).mkdir()
                stack.callback(shutil.rmtree, self._folder / peer.name)
            peers = [self._reload_of(peer) for peer in self._peers]
            self._step(LOAD, [*(self._load_of(side) for side in sides), *peers], rounds)
            for share in (0.0, *shares_percent):
                changed = 0
                if share:
                    self._source.load(table)
                    changed = self._source.update(share / 100)
                turns = [*(self._refresh_of(side, changed) for side in sides), *peers]
                self._step(updated(share) if share else NOTHING, turns, rounds)
        return rows

    def _step(self, step: str, turns: Sequence[Turn], rounds: int) -> None:
        for number in range(rounds):
            first = number % len(turns)
            for turn in (*turns[first:], *turns[:first]):
                ran = turn(step)
                self.runs.append(ran)
                print(
                    f"{ran.table}, {step}: {ran.tool} {ran.cost.wall_s:.2f} s, processor"
                    f" {ran.cost.cpu_s:.2f} s, source's {ran.cost.source_cpu_s:.2f} s",
                    file=sys.stderr,
                    flush=True,
                )

    def _load_of(self, side: Checkout) -> Turn:
        return lambda step: self._ours(side, step, side.load())

    def _refresh_of(self, side: Checkout, changed: int) -> Turn:
        return lambda step: self._ours(side, step, side.refresh(changed))

    def _ours(self, side: Checkout, step: str, done: Refreshed) -> Run:
        compare(f"{step}: {side.name}", done.contents, self._source.contents)
        return Run(self._source.table, step, side.name, done.cost, done.report)

    def _reload_of(self, peer: Reload) -> Turn:
        def reload(step: str) -> Run:
            cost, written = peer.reload(self._source, self._folder / peer.name)
            source = self._source.contents
            if isinstance(written, int):  # it kept nothing to hash
                written = Contents(written, source.hashes)
            compare(f"{step}: {peer.name}", written, source)
            return Run(self._source.table, step, peer.name, cost)

        return reload


def chosen(names: Sequence[str], *, install: bool) -> tuple[list[Reload], dict[str, str]]:
    """Return the peers that can run, and why each other one cannot."""
    peers, left_out = [], {}
    for name in names or PEERS:
        why = PEERS[name].missing(install=install)
        if why is None:
            peers.append(PEERS[name])
        else:
            left_out[name] = why
    return peers, left_out


def commit(tree: Path) -> str:
    """Return the short name of a checkout's commit."""
    words = ["git", "-C", str(tree), "describe", "--always", "--dirty=+"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return found or "of no known commit"


@click.command(help=__doc__)
@click.option("--table", "tables", multiple=True, type=click.Choice(TABLES))
@click.option("--scale", default=0.5, show_default=True, help="0.5: 3,000,000 and 750,000 rows.")
@click.option("--share", "shares", default=(0.1, 1.0, 10.0), multiple=True, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--peer", "names", multiple=True, type=click.Choice([*PEERS]), help="Default: all.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout, that of which goals are a part.",
)
@click.option("--no-install", is_flag=True, help="Leave out what is not there yet.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    tables: tuple[str, ...],
    scale: float,
    shares: tuple[float, ...],
    rounds: int,
    names: tuple[str, ...],
    before: Path | None,
    no_install: bool,
    file: Path | None,
) -> None:
    """See the module."""
    meter.adopt_orphans()
    peers, left_out = chosen(names, install=not no_install)
    trees = {OURS: ROOT} | ({BEFORE: before} if before else {})
    if before is None:
        left_out[BEFORE] = "no other checkout was named (--before)"
    machine = here(scale, Path()).machine
    measured: list[Measurement] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(PostgreSQL(autovacuum="off"))
        source = Source(server, scale)
        versions = {BEFORE: f"Driftline {commit(before)}"} if before else {}
        versions |= {peer.name: f"{peer.version()}, into {peer.writes}" for peer in peers}
        for table in tables or TABLES:
            comparison = Comparison(source, folder, trees, peers)
            rows = 0
            try:
                rows = comparison.measure(table, shares, rounds)
            except (FailedError, UnequalError) as error:
                raise click.ClickException(f"{table}: {error}") from None
            finally:
                done = Measurement(
                    table,
                    rows,
                    rounds,
                    machine,
                    commit(ROOT),
                    source.version,
                    versions,
                    left_out,
                    comparison.runs,
                )
                measured.append(done)
                print(done.markdown(), end="\n\n", flush=True)
                if file is not None:
                    file.write_text(dump(measured))


if __name__ == "__main__":
    main()

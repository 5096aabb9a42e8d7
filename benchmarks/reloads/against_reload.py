"""A refresh against reloading the table: whole commands, in turn, on the same source and change.

    python -m benchmarks.reloads.against_reload --before ../before --json reloads.json
    python -m benchmarks.reloads.against_reload --only-lines --line 100ms,10mbit --line loopback
    python -m benchmarks.reloads.against_reload --table orders --scale 0.002 --rounds 1 --peer copy

TPC-H tables in a PostgreSQL on loopback. Of each: a first load, a refresh that finds nothing, and
refreshes of a share of the rows, updated at scattered keys in a table that was made anew. In each
round of a step every tool runs once, the first of them another one each time. Driftline begins each
refresh with a copy of the same published version, has the default settings, and mutual TLS; with
`--before` another checkout does the same. Peers load all, as `peers` says.

With `--line` half of lineitem changes, in clusters and scattered, between two network namespaces
behind such a line (or on loopback), beside a compressed COPY over the same: at first, after a load,
and once the forecast has met as much before.

After each run what the tool wrote is compared with the source: the number of rows, and a hash of
all values. What is not equal ends the benchmark. What cannot be installed is left out LOUDLY: a
table without a peer says nothing about that peer. Nothing else should run on the machine.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks import meter
from benchmarks.peers.changes import Pattern
from benchmarks.peers.compare import leave
from benchmarks.peers.matrix import here
from benchmarks.reloads import lines
from benchmarks.reloads.comparison import Comparison
from benchmarks.reloads.contents import UnequalError
from benchmarks.reloads.peers import PEERS, Reload
from benchmarks.reloads.place import FailedError, Source
from benchmarks.reloads.results import BEFORE, COPY_ON_LINE, OURS, Measurement, dump
from tests import ROOT
from tests.harness.servers import PostgreSQL
from tests.wan.link import available

TABLES = ("lineitem", "orders")


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


class Record:
    """What was measured so far: printed and written as it comes, also if the next thing fails."""

    def __init__(self, machine: str, source: Source, rounds: int, file: Path | None) -> None:
        self._machine, self._source, self._rounds, self._file = machine, source, rounds, file
        self._measured: list[Measurement] = []

    def take(
        self,
        measure: Callable[[], int],
        comparison: Comparison,
        *,
        table: str,
        line: str,
        versions: dict[str, str],
        left_out: dict[str, str],
    ) -> None:
        """Measure one table, and record it with what was run and what was not.

        Raises:
            click.ClickException: a tool failed, or was wrong.
        """
        rows = 0
        try:
            rows = measure()
        except (FailedError, UnequalError) as error:
            raise click.ClickException(f"{table}: {error}") from None
        finally:
            self._measured.append(
                Measurement(
                    table=table,
                    line=line,
                    rows=rows,
                    rounds=self._rounds,
                    machine=self._machine,
                    commit=commit(ROOT),
                    server=self._source.version,
                    versions=versions,
                    left_out=left_out,
                    runs=comparison.runs,
                )
            )
            print(self._measured[-1].markdown(), end="\n\n", flush=True)
            if self._file is not None:
                self._file.write_text(dump(self._measured))


def checked(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is no line, or cannot be made here."""
    for name in names:
        if name != lines.LOOPBACK.name:
            try:
                lines.shape(name)
            except ValueError as error:
                raise click.BadParameter(str(error)) from None
            if reason := available():
                raise click.BadParameter(f"no simulated line here: {reason}")
    if names and (reason := lines.CompressedCopy.missing()):
        raise click.BadParameter(reason)
    return names


@click.command(help=__doc__)
@click.option("--table", "tables", multiple=True, type=click.Choice(TABLES))
@click.option("--scale", default=0.5, show_default=True, help="0.5: 3,000,000 and 750,000 rows.")
@click.option("--share", "shares", default=(0.1, 1.0, 10.0), multiple=True, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--peer", "names", multiple=True, type=click.Choice([*PEERS]), help="Default: all.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another checkout, which some goals name.",
)
@click.option("--line", "over", multiple=True, callback=checked, help="`100ms,10mbit`, `loopback`.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    type=click.Choice([one.value for one in Pattern]),
    help="Where half of the rows change, with --line. Default: both.",
)
@click.option("--only-lines", is_flag=True, help="Measure what --line names, and no more.")
@click.option("--no-install", is_flag=True, help="Leave out what is not there yet.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path))
def main(
    tables: tuple[str, ...],
    scale: float,
    shares: tuple[float, ...],
    rounds: int,
    names: tuple[str, ...],
    before: Path | None,
    over: tuple[str, ...],
    patterns: tuple[str, ...],
    only_lines: bool,
    no_install: bool,
    file: Path | None,
) -> None:
    """See the module."""
    signal.signal(signal.SIGTERM, leave)
    meter.adopt_orphans()
    where = [Pattern(one) for one in patterns] or [Pattern.CLUSTERED, Pattern.SCATTERED]
    machine = here(scale, Path()).machine
    peers, left_out = chosen(names, install=not no_install) if not only_lines else ([], {})
    trees = {OURS: ROOT} | ({BEFORE: before} if before else {})
    if before is None:
        left_out[BEFORE] = "no other checkout was named (--before)"
    versions = {BEFORE: f"Driftline {commit(before)}"} if before else {}
    versions |= {peer.name: f"{peer.version()}, into {peer.writes}" for peer in peers}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.chmod(0o755)
        source = Source(stack.enter_context(PostgreSQL(autovacuum="off")), scale)
        record = Record(machine, source, rounds, file)
        for table in () if only_lines else tables or TABLES:
            comparison = Comparison(source, folder, trees, peers)
            record.take(
                partial(comparison.measure, table, shares, rounds),
                comparison,
                table=table,
                line=lines.LOOPBACK.name,
                versions=versions,
                left_out=left_out,
            )
        for name in over:
            comparison = Comparison(source, folder, trees, ())
            with lines.line_of(name) as line:
                record.take(
                    partial(comparison.measure_halves, line, where, rounds),
                    comparison,
                    table="lineitem",
                    line=name,
                    versions={COPY_ON_LINE: f"COPY (csv) | zstd -{lines.LEVEL}, counted"},
                    left_out={},
                )


if __name__ == "__main__":
    main()

"""Driftline and its peers side by side, between two network namespaces over a user-space link.

    python -m benchmarks.peers.compare                                     everything: many hours
    python -m benchmarks.peers.compare --table orders --rate 1 --rtt-ms 0 --rate-mbit 0
    python -m benchmarks.peers.compare --tool reladiff --tool driftline:range --scale 0.01 --warm 1
    python -m benchmarks.peers.compare --redraw                            tables and pictures only

Tools, with settings or without: `full-copy:LEVEL`, `reladiff:FACTOR:THRESHOLD:THREADS`,
`pg_comparator:FOLD`, `pt-table-sync:ROWS`, the last three also with `+ssh` behind, after their
settings (`pg_comparator:5+ssh`); `driftline` (the planner's choice), `driftline:METHOD`.
Without settings a peer runs with each of its best, and the table shows which was best at what. Each
run adds a line to `--results`; a run that was there is replaced in tables and pictures. So the
matrix can be run in pieces.

`--rtt-ms` and `--rate-mbit` are taken in pairs, the last rate for all further delays; a rate of 0
is none. Loads happen on a link without delay and are not measured. Driftline's first refresh after
one is recorded as cold; `--warm` of them precede the one in the table on the first link, fewer on
each later one. With `--lazy-spark` small tables are refreshed without Spark.

What is missing here is skipped LOUDLY: a table without a peer says nothing about that peer.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.peers import tunnel
from benchmarks.peers.changes import TABLES, Pattern
from benchmarks.peers.matrix import Choice, Matrix, Shape, here
from benchmarks.peers.results import OURS, markdown, read
from benchmarks.peers.sites import Sites
from benchmarks.peers.theirs import PEERS, SETTINGS
from benchmarks.peers.tool import TUNNELLED, Cell, family
from tests.wan import link as wan

RATES_PERCENT = (0.0, 0.01, 0.1, 1.0, 10.0, 50.0, 100.0)


def shapes(rtts_ms: Sequence[float], rates_mbit: Sequence[float]) -> list[Shape]:
    """In pairs; the last rate again for delays without one."""
    padded = [*rates_mbit, *[rates_mbit[-1]] * len(rtts_ms)]
    return [Shape(rtt, rate or None) for rtt, rate in zip(rtts_ms, padded, strict=False)]


def chosen(words: Sequence[str]) -> list[tuple[str, float]]:
    """Names of peers with settings, and the rate up to which each runs. Driftline's are not here.

    Raises:
        click.BadParameter: there is no such tool.
    """
    rates: dict[str, float] = {}
    for word in words:
        kind = family(word)
        if kind not in SETTINGS:
            known = ", ".join([*SETTINGS, OURS])
            raise click.BadParameter(f"{word!r}: choose from {known}", param_hint="--tool")
        if ":" in word:
            rates[word] = 1.0
        else:
            start, end = kind.removesuffix(TUNNELLED), kind[len(kind.removesuffix(TUNNELLED)) :]
            rates |= {f"{start}:{one}{end}": rate_max for one, rate_max in SETTINGS[kind]}
    return list(rates.items())


def peers(words: Sequence[str], sites: Sites, timeout_s: float) -> list[Choice]:
    """Those that are installed."""
    names = chosen(words)
    reasons: dict[str, str | None] = {}
    for kind in dict.fromkeys(family(name) for name, _ in names):
        reason = PEERS[kind.removesuffix(TUNNELLED)].missing()
        if reason is None and kind.endswith(TUNNELLED):
            reason = tunnel.missing()
        if reason is not None:
            shout(f"{kind.upper()} IS SKIPPED: {reason}")
        reasons[kind] = reason
    return [
        Choice(PEERS[name.partition(":")[0]](name, sites, timeout_s), rate_max)
        for name, rate_max in names
        if reasons[family(name)] is None
    ]


def driftline(
    words: Sequence[str],
    cells: Sequence[Cell],
    stack: ExitStack,
    sites: Sites,
    timeout_s: float,
    lazy_spark: bool,
) -> list[Choice]:
    """Its tools. Imported here, so that the peers can be run without what the product needs."""
    from benchmarks.peers import ours

    known = ours.names()
    if unknown := set(words) - set(known):
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}", param_hint="--tool"
        )
    shared = ours.SharedAgents(stack, sites, cells, words, lazy_spark)
    return [Choice(ours.Driftline(w, sites, timeout_s, shared), 1.0) for w in words]


def every_tool() -> list[str]:
    from benchmarks.peers import ours

    return [*SETTINGS, *ours.names()]


def leave(*_: object) -> None:
    """As if by Ctrl-C: servers are ended and folders removed, and nothing interrupts that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def shout(what: str) -> None:
    print(f"\n{'!' * len(what)}\n{what}\n{'!' * len(what)}\n", file=sys.stderr, flush=True)


def publish(results: Path, output: Path) -> None:
    """Write the tables and the pictures of all recorded lines into a folder."""
    recorded = read(results)
    output.mkdir(parents=True, exist_ok=True)
    (tables := output / f"{results.stem}.md").write_text(markdown(recorded))
    print(tables)
    try:
        from benchmarks.peers import plots
    except ImportError as error:
        shout(f"NO PICTURES: {error}; install the extra `dev`")
        return
    for file in plots.draw(recorded, output):
        print(file)


@click.command()
@click.option("--tool", "tools", multiple=True, help="By default, all.")
@click.option("--table", "tables", multiple=True, type=click.Choice(list(TABLES)))
@click.option("--pattern", "patterns", multiple=True, type=click.Choice([p.value for p in Pattern]))
@click.option("--rate", "rates", multiple=True, type=float, help="Per cent of the rows.")
@click.option("--scale", default=0.5, show_default=True)
@click.option("--rtt-ms", default=(0.0, 100.0), multiple=True, show_default=True)
@click.option("--rate-mbit", default=(0.0, 10.0), multiple=True, show_default=True)
@click.option("--warm", default=10, show_default=True, help="Refreshes before the measured one.")
@click.option("--timeout-s", default=900.0, show_default=True, help="For each run.")
@click.option("--seed", default=1, show_default=True)
@click.option("--results", type=Path, default=Path("benchmarks/peers.jsonl"), show_default=True)
@click.option("--output", type=Path, default=Path("artifacts/peers"), show_default=True)
@click.option("--redraw", is_flag=True, help="Run nothing.")
@click.option("--lazy-spark", is_flag=True, help="Start Spark when a step needs it.")
def main(
    tools: tuple[str, ...],
    tables: tuple[str, ...],
    patterns: tuple[str, ...],
    rates: tuple[float, ...],
    scale: float,
    rtt_ms: tuple[float, ...],
    rate_mbit: tuple[float, ...],
    warm: int,
    timeout_s: float,
    seed: int,
    results: Path,
    output: Path,
    redraw: bool,
    lazy_spark: bool,
) -> None:
    """Driftline and its peers side by side."""
    signal.signal(signal.SIGTERM, leave)
    if not redraw:
        if reason := wan.available():
            raise click.ClickException(f"no simulated link here: {reason}")
        cells = [
            Cell(TABLES[table], Pattern(pattern), rate / 100)
            for table, pattern, rate in product(
                tables or TABLES, patterns or [p.value for p in Pattern], rates or RATES_PERCENT
            )
        ]
        words = list(tools) or every_tool()
        ours = [word for word in words if word.partition(":")[0] == OURS]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            folder.chmod(0o755)  # the servers' users look here
            sites = Sites(stack, stack.enter_context(wan.Link()), folder)
            # Driftline first: it expects the more changes the longer others kept it waiting.
            choices: list[Choice] = []
            if ours:
                choices += driftline(ours, cells, stack, sites, timeout_s, lazy_spark)
            choices += peers([word for word in words if word not in ours], sites, timeout_s)
            matrix = Matrix(sites, choices, here(scale, results), seed)
            for cell in cells:
                matrix.run(cell, shapes(rtt_ms, rate_mbit), warm)
    publish(results, output)


if __name__ == "__main__":
    main()

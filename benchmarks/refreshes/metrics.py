"""The cost of metrics: processor seconds of a refresh of one table of many, with and without them.

    python -m benchmarks.refreshes.metrics --tables 10 --tables 500 --lines 1000

Each command is a process, and finds nothing changed. Every table has a history of so many lines,
those of the refreshed table under another name; nothing else of the other tables is there. First
commands read the newest lines of histories that are not known yet, each for a second at most; they
are shown apart.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from benchmarks import meter
from benchmarks.refreshes.many import Bench
from tests.harness.pair import SourceProcess
from warehouse_agent.history import refresh_history
from warehouse_agent.storage.store import Store

ROWS: Final = 100
FIRST_MAX: Final = 100  # commands until all tables are known
NAME: Final = "t0"  # the table that is refreshed


def write_histories(bench: Bench, lines: int) -> None:
    """Give each table the newest line of the refreshed one, so many times."""
    store = Store(str(bench.folder / "warehouse"))
    newest = next(filter(None, store.lines_backwards("_driftline", "runs", f"{NAME}.jsonl")))
    body = b""
    for _ in range(lines):
        body += newest + b"\n"
        if len(body) >= refresh_history.LINES_BYTES_MAX:
            body = refresh_history.shortened(body)
    for name in bench.names:
        store.write(body, "_driftline", "runs", f"{name}.jsonl")


def known(bench: Bench) -> int:
    """Return of how many tables the textfile tells."""
    file = bench.folder / "lake.prom"  # a busy machine may not write it in time
    return file.read_text().count("driftline_rows{") if file.exists() else 0


@click.command()
@click.option("--tables", "sizes", multiple=True, default=[10, 500], show_default=True)
@click.option("--lines", default=1000, show_default=True, help="Of each history.")
@click.option("--rounds", default=5, show_default=True)
def main(sizes: tuple[int, ...], lines: int, rounds: int) -> None:
    """Measure what metrics cost a command that refreshes one table of many."""
    meter.adopt_orphans()
    print(f"{lines:,} lines a history, {rounds} rounds, {os.cpu_count()} cores", flush=True)
    for tables in sizes:
        with TemporaryDirectory() as folder:
            bench = Bench(Path(folder), tables=tables, rows=ROWS)
            with bench.serve() as source:
                print(line_of(bench, source, lines, rounds), flush=True)


def line_of(bench: Bench, source: SourceProcess, lines: int, rounds: int) -> str:
    """Return the results for a warehouse."""
    file = bench.folder / "warehouse.toml"
    without = file.read_text()
    with_metrics = f'{without}\n[metrics]\ntextfile = "lake.prom"\n'

    def refresh(text: str) -> float:
        file.write_text(text)
        return bench.run(source, "refresh", NAME, "--json").cpu_s

    refresh(without)
    write_histories(bench, lines)
    first = [refresh(with_metrics)]
    while known(bench) < bench.tables and len(first) < FIRST_MAX:
        first.append(refresh(with_metrics))
    costs = {"without": list[float](), "with": list[float]()}
    for _ in range(rounds):
        costs["without"].append(refresh(without))
        costs["with"].append(refresh(with_metrics))
    middle = {name: statistics.median(values) for name, values in costs.items()}
    size = (bench.folder / "lake.prom").stat().st_size / 1000
    return (
        f"{bench.tables:,} tables: without {middle['without']:.2f} s, with {middle['with']:.2f} s,"
        f" more {middle['with'] - middle['without']:.2f} s; textfile {size:,.0f} kB;"
        f" {len(first)} first commands, {max(first):.2f} s at most"
    )


if __name__ == "__main__":
    main()

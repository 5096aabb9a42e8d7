"""Differentials of two files: the window beside the joins, `sort` and DuckDB.

    python -m benchmarks.files.snapshots --rows 3000000
    python -m benchmarks.files.snapshots --rows 100000 --distance 0 --figures

For each distance, each contender is a process of its own, several times in turn; the time of the
least CPU counts. CPU seconds are those of the process and all below it, less those of a process
that only imports; so is the memory behind `+`. Ratios are to "parse and hash", which reads both
files once, makes row bytes and hashes them. What the window opens and reads is recorded, and its
output is checked against what the generator changed. "driftline diff" is the whole command: where
the window gives up, it joins by Spark.

`--figures` prints the figures of Labio and Garcia-Molina in shape, too (`figures`).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click
import pyarrow.parquet as pq

from benchmarks.files.contenders import (
    OUTPUT,
    Taken,
    by_duckdb,
    by_sort,
    by_the_command,
    by_the_window,
    nothing,
    parse,
    parse_and_hash,
    sort_old,
    taken,
)
from benchmarks.files.figures import figures
from benchmarks.files.generator import Changed, make

IMPORTS, BASE, COMMAND = "imports alone", "parse and hash", "driftline diff"
CHANGED = Changed(0.01, 0.002, 0.002)


def check(folder: Path, changed: Changed) -> str:
    """Compare the window's output with what was changed; return what is wrong, or that it is so."""
    table = pq.ParquetFile(folder / OUTPUT).read(["_op", "id"])
    keys: dict[str, set[int]] = {"update": set(), "insert": set(), "delete": set()}
    for form, key in zip(*(table.column(i).to_pylist() for i in range(2)), strict=True):
        keys[form].add(key)
    reported = Changed(*map(len, (keys["update"], keys["insert"], keys["delete"])))
    useless = len(keys["insert"] & keys["delete"])
    verdict = "as changed" if reported == changed else f"WRONG: {changed}"
    return f"out: {table.num_rows:,} changes, {useless} useless pairs, {verdict}"


def compare(folder: Path, runs: int, changed: Changed) -> None:
    """Print what each contender takes."""
    sort_old(folder)
    contenders = {
        IMPORTS: nothing,
        "parse": parse,
        BASE: parse_and_hash,
        "window": by_the_window,
        "sort, comm (old sorted before)": by_sort,
        "DuckDB full outer join": by_duckdb,
        COMMAND: by_the_command,
    }
    best: dict[str, Taken] = {}
    for _ in range(runs):
        for name, run in contenders.items():
            measured = taken(run, folder)
            best[name] = min(best.get(name, measured), measured, key=lambda t: t.cpu_s)
    start = best[IMPORTS]
    base = best[BASE].cpu_s - start.cpu_s
    for name, measured in best.items():
        own = measured.cpu_s - start.cpu_s
        click.echo(
            f"{name:32}{own:7.2f} s CPU  x{own / base:5.2f} {measured.wall_s:7.2f} s wall"
            f" {measured.mib:6.0f} MiB (+{measured.mib - start.mib:.0f})  {measured.answer}"
        )
    click.echo(f"{'':32}{check(folder, changed)}")


@click.command()
@click.option("--rows", default=400_000, show_default=True)
@click.option("--distance", "distances", multiple=True, default=(0.0, 0.05, 0.2), show_default=True)
@click.option("--runs", default=3, show_default=True)
@click.option("--figures", "with_figures", is_flag=True)
def main(rows: int, distances: tuple[float, ...], runs: int, with_figures: bool) -> None:
    for distance in distances:
        folder = Path(tempfile.mkdtemp())
        try:
            click.echo(f"{rows:,} records, distance {distance:g}")
            compare(folder, runs, make(folder, rows, distance, CHANGED))
        finally:
            shutil.rmtree(folder)
    if with_figures:
        figures(rows, runs)


if __name__ == "__main__":
    main()

"""Commands of this checkout against those of another, in turn, each as a process of its own.

    python -m benchmarks.refreshes.commands ../before
    python -m benchmarks.refreshes.commands ../before --rows 20000 --orders 750000 --lines 2500

A refresh that finds nothing, `status` of many tables, and a refresh of 1 % changed rows: the whole
command, from its start to its exit, beside a source agent of the same checkout over a file of
SQLite with the same rows. What is compared is the ratio of each pair, so that a machine whose speed
drifts changes nothing. Last, of this checkout alone: a refresh that finds nothing beside a history
of many lines, and beside one of 30.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests import ROOT
from tests.harness.pair import SourceProcess, environment

CHANGED = 0.01
COMPILED = ("proto", "source_agent", "warehouse_agent")
FEW = 30  # lines of a history
_SMALL = 20  # rows of each table that `status` is told of
Change = Callable[[int], None]


@dataclass(frozen=True)
class Build:
    """A checkout, with a database and a warehouse of its own."""

    tree: Path
    folder: Path

    def fill(self, rows: int, orders: int, tables: int) -> None:
        """Make the database and both files of settings, which name no address yet; and compile the
        checkout, since one that was never run has each of its processes compile it."""
        compiled = [sys.executable, "-m", "compileall", "-q", *COMPILED]
        subprocess.run(compiled, cwd=self.tree, check=True)
        dice = random.Random(1)
        with closing(sqlite3.connect(self.folder / "erp.db")) as owner, owner:
            owner.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
            owner.executemany(
                "INSERT INTO t VALUES (?, ?)", ((i, f"note {i}") for i in range(rows))
            )
            owner.execute(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, total TEXT, x TEXT)"
            )
            values = ((4 * i, f"{i % 977}.50", dice.randbytes(40).hex()) for i in range(orders))
            owner.executemany("INSERT INTO orders VALUES (?, ?, ?)", values)
            for name in self.names(tables)[2:]:
                owner.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL)")
                owner.executemany(f"INSERT INTO {name} VALUES (?)", ((i,) for i in range(_SMALL)))
        lines = ["[database]", 'url = "sqlite:///erp.db"', "[server]", 'listen = "127.0.0.1:0"']
        lines += ["insecure = true"]
        lines += [f'[relations.{name}]\ntable = "{name}"' for name in self.names(tables)]
        (self.folder / "source.toml").write_text("\n".join(lines))

    def serve(self, stack: ExitStack, tables: int) -> None:
        """Run the source agent, and write its address into the warehouse's file."""
        config = self.folder / "source.toml"
        address = stack.enter_context(SourceProcess(config, tree=self.tree)).address
        lines = ["[warehouse]", 'path = "warehouse"', "[sources.erp]", f'address = "{address}"']
        lines += ["insecure = true"]
        lines += [f'[fragments.{n}]\nsource = "erp"\nrelation = "{n}"' for n in self.names(tables)]
        (self.folder / "warehouse.toml").write_text("\n".join(lines))

    def names(self, tables: int) -> list[str]:
        return ["t", "orders", *(f"t{n}" for n in range(tables))]

    def change(self, nth: int, orders: int) -> None:
        """Update CHANGED of the orders, the same ones in each build."""
        keys = random.Random(nth).sample(range(orders), max(round(orders * CHANGED), 1))
        with closing(sqlite3.connect(self.folder / "erp.db")) as owner, owner:
            rows = ((f"{nth}.{key % 97}", 4 * key) for key in keys)
            owner.executemany("UPDATE orders SET total = ? WHERE id = ?", rows)

    def run(self, *words: str) -> float:
        """Run a command of the warehouse agent; return its seconds."""
        config = str(self.folder / "warehouse.toml")
        argv = [sys.executable, "-m", "warehouse_agent.cli", "--config", config, *words]
        began = time.perf_counter()
        done = subprocess.run(
            argv,
            cwd=self.tree,
            env=environment(self.tree),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return time.perf_counter() - began


def pairs(there: Build, here: Build, words: list[str], rounds: int, change: Change) -> str:
    """Return the medians of both, and the median of the ratios, as a line."""
    seconds: dict[Build, list[float]] = {there: [], here: []}
    for nth in range(rounds):
        change(nth)
        for build in (there, here) if nth % 2 else (here, there):
            seconds[build].append(build.run(*words))
    return compared(seconds[there], seconds[here], "there", "here")


def compared(before: list[float], after: list[float], first: str, second: str) -> str:
    """Return two medians, and that of the ratios of pairs with the least and the greatest."""
    ratios = sorted(b / a for a, b in zip(before, after, strict=True))
    medians = (
        f"{first} {statistics.median(before):.3f} s  {second} {statistics.median(after):.3f} s"
    )
    spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    return f"{medians}  ratio {spread}"


def histories(build: Build, lines: int, rounds: int) -> str:
    """Return the medians beside a history of FEW lines and one of `lines`, as a line."""
    place = build.folder / "warehouse" / "_driftline" / "runs" / "t.jsonl"
    load, *_, last = place.read_text().splitlines(keepends=True)
    texts, seconds = dict[int, str](), dict[int, list[float]]()
    for number in (FEW, lines):
        place.write_text(load + last * (number - 1))
        build.run("refresh", "t")  # adds old lines up, if there are many
        texts[number], seconds[number] = place.read_text(), []
    for nth in range(rounds):
        for number in (FEW, lines) if nth % 2 else (lines, FEW):
            place.write_text(texts[number])
            seconds[number].append(build.run("refresh", "t"))
    return compared(seconds[FEW], seconds[lines], str(FEW), f"{lines:,}")


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rows", default=20_000, show_default=True, help="of the table that stays")
@click.option("--orders", default=750_000, show_default=True, help="rows of which 1 % change")
@click.option("--tables", default=48, show_default=True, help="more tables, for `status`")
@click.option("--lines", default=2500, show_default=True, help="of a long history")
@click.option("--rounds", default=9, show_default=True)
def main(other: Path, rows: int, orders: int, tables: int, lines: int, rounds: int) -> None:
    """Time three commands of this checkout and of OTHER."""
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        there, here = (
            Build(other.resolve(), Path(scratch) / "there"),
            Build(ROOT, Path(scratch) / "here"),
        )
        for build in (there, here):
            build.folder.mkdir()
            build.fill(rows, orders, tables)
            build.serve(stack, tables)
            build.run("refresh")
            build.run("refresh", "t")  # learns what the next one knows

        def nothing(_nth: int) -> None:
            pass

        def change(nth: int) -> None:
            there.change(nth, orders)
            here.change(nth, orders)

        print(f"{rows:,} rows, unchanged: {pairs(there, here, ['refresh', 't'], rounds, nothing)}")
        print(f"status of {tables + 2}: {pairs(there, here, ['status'], rounds, nothing)}")
        words = ["refresh", "orders"]
        print(f"{orders:,} rows, 1 % changed: {pairs(there, here, words, rounds, change)}")
        print(f"lines of a history: {histories(here, lines, rounds)}")


if __name__ == "__main__":
    main()

"""Commands of the warehouse on many small tables, or a large one: wall and processor seconds.

    python -m benchmarks.refreshes.many --tables 50 --rows 10000 --changed 26
    python -m benchmarks.refreshes.many --tables 1 --rows 1500000 --changed 15000
    python -m benchmarks.refreshes.many --tables 500 --rows 1000

Each command is a process, as a scheduler runs it: a load, refreshes with nothing changed, refreshes
with scattered updates, `status` and `--help`. The source is an SQLite file behind mutual TLS over
loopback.

Processor seconds are of all processes that a command started, also of a JVM that ends after it: the
benchmark adopts orphans and waits for them. Those of the source agent are apart. Wall seconds end
when the command does. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks import meter
from benchmarks.source.memory import status_mb
from source_agent.enrolment import enroll
from tests import ROOT
from tests.harness.pair import SourceProcess, environment

SAMPLE_S = 0.01  # wall seconds may be longer by as much


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command cost.

    Attributes:
        wall_s: until its process ended.
        cpu_s, source_cpu_s: of all processes of the command; of the source agent meanwhile.
        peak_bytes: of the command's own process, the driver, resident.
        reports: of its fragments.
    """

    wall_s: float
    cpu_s: float
    source_cpu_s: float
    peak_bytes: int
    reports: tuple[dict[str, Any], ...]

    @property
    def places(self) -> str:
        """Where the steps of each phase ran."""
        by_phase: dict[str, set[str]] = {}
        for report in self.reports:
            for phase, place in report["places"].items():
                by_phase.setdefault(phase, set()).add(place)
        return ", ".join(f"{phase}: {'+'.join(sorted(at))}" for phase, at in by_phase.items())


class Bench:
    """Tables `t0`, `t1` … of one SQLite file, their source agent, and the file of a warehouse."""

    def __init__(self, folder: Path, *, tables: int, rows: int) -> None:
        self.folder, self.tables, self.rows = folder, tables, rows
        self.database = sqlite3.connect(folder / "erp.db")
        for name in self.names:
            self.database.execute(
                f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a TEXT, b INTEGER, c REAL, d TEXT)"
            )
            self.database.executemany(
                f"INSERT INTO {name} VALUES (?, ?, ?, ?, ?)",
                (
                    (i, f"name {i * 7919 % 100_003}", i * 31 % 1009, i / 7, "x" * (i % 23))
                    for i in range(rows)
                ),
            )
        self.database.execute("ANALYZE")
        self.database.commit()
        enroll(folder / "certs", source_names=["127.0.0.1"])
        relations = "".join(f'[relations.{name}]\ntable = "{name}"\n' for name in self.names)
        self.source_toml = folder / "source.toml"
        self.source_toml.write_text(
            f'[database]\nurl = "sqlite:///{folder}/erp.db"\n[server]\nlisten = "127.0.0.1:0"\n'
            'certificate = "certs/source.pem"\nkey = "certs/source.key"\n'
            f'client_ca = "certs/ca.pem"\naudit_file = "audit.jsonl"\n{relations}'
        )

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return [f"t{number}" for number in range(self.tables)]

    @contextlib.contextmanager
    def serve(self, more: str = "") -> Iterator[SourceProcess]:
        """Serve all tables, to a warehouse with `more` lines in [warehouse]."""
        with SourceProcess(self.source_toml) as source:
            fragments = "".join(f'[fragments.{name}]\nsource = "erp"\n' for name in self.names)
            (self.folder / "warehouse.toml").write_text(
                f'[warehouse]\npath = "warehouse"\n{more}\n[spark]\n"spark.master" = "local[2]"\n'
                f'[sources.erp]\naddress = "{source.address}"\nca = "certs/ca.pem"\n'
                f'certificate = "certs/warehouse.pem"\nkey = "certs/warehouse.key"\n{fragments}'
            )
            yield source

    def change(self, rows: int, *, seed: int) -> None:
        """Update `rows` rows of every table, evenly scattered over its keys."""
        step = self.rows / rows
        keys = [(int((i + seed / 16 % 1) * step),) for i in range(rows)]
        for name in self.names:
            self.database.executemany(f"UPDATE {name} SET a = a || '!' WHERE id = ?", keys)
        self.database.commit()

    def refresh(self, source: SourceProcess, *, changed: int | None) -> Ran:
        """Refresh all tables; each must find `changed` updated rows, or load if it is None."""
        ran = self.run(source, "refresh", "--all", "--json")
        assert len(ran.reports) == self.tables
        for report in ran.reports:
            assert report["error"] is None, report
            assert report["rows_total"] == self.rows, report
            assert changed is None or report["rows_updated"] == changed, report
        return ran

    def run(self, source: SourceProcess, *words: str) -> Ran:
        """Run a command of the warehouse, which must succeed."""
        began, source_began = meter.ended_children_cpu_s(), meter.cpu_s([source.process.pid])
        out = self.folder / "out"
        with out.open("wb") as stdout:
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "warehouse_agent.cli", *words],
                cwd=self.folder,
                env=environment(ROOT),
                stdout=stdout,
            )
            peak_bytes = 0
            while process.poll() is None:
                peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
                time.sleep(SAMPLE_S)
            wall_s = time.perf_counter() - start
        meter.reap(but=[source.process.pid])
        assert process.returncode == 0, words
        lines = out.read_text().splitlines() if "--json" in words else []
        return Ran(
            wall_s,
            meter.ended_children_cpu_s() - began,
            meter.cpu_s([source.process.pid]) - source_began,
            peak_bytes,
            tuple(map(json.loads, lines)),
        )


def _peak_bytes(pid: int) -> int:
    """Return the peak of a process; 0 if it has ended. (`ru_maxrss` would count our own, too.)"""
    with contextlib.suppress(OSError, StopIteration):
        return round(status_mb(pid, "VmHWM") * 1e6)
    return 0


def text_of(what: str, runs: Sequence[Ran]) -> str:
    """Return one line: medians, and in brackets the least and greatest of several runs."""

    def seconds(values: list[float]) -> str:
        middle = f"{statistics.median(values):7.2f}"
        return middle if len(values) == 1 else f"{middle} ({min(values):.2f}-{max(values):.2f})"

    wall, cpu, source = (
        seconds([getattr(run, name) for run in runs])
        for name in ("wall_s", "cpu_s", "source_cpu_s")
    )
    peak = max(run.peak_bytes for run in runs) / 1e6
    line = f"{what:28} wall {wall} s, processor {cpu} s, source {source} s, driver {peak:.0f} MB"
    return f"{line}  {runs[-1].places}".rstrip()


@click.command()
@click.option("--tables", default=50, show_default=True)
@click.option("--rows", default=10_000, show_default=True, help="Of each table.")
@click.option("--changed", default=0, show_default=True, help="Rows updated in each; 0: none.")
@click.option("--rounds", default=3, show_default=True, help="Refreshes of each kind.")
@click.option("--small-bytes", type=int, help="Of [warehouse]; default: the agent's.")
def main(tables: int, rows: int, changed: int, rounds: int, small_bytes: int | None) -> None:
    """Time the commands of a warehouse whose tables are small, or change little."""
    meter.adopt_orphans()
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder), tables=tables, rows=rows)
        print(f"{tables:,} x {rows:,} rows, {rounds} rounds, {os.cpu_count()} cores", flush=True)
        more = "" if small_bytes is None else f"small_bytes = {small_bytes}"
        with bench.serve(more) as source:

            def show(what: str, runs: Sequence[Ran]) -> None:
                print(text_of(what, runs), flush=True)

            show("load", [bench.refresh(source, changed=None)])
            show("nothing changed, first", [bench.refresh(source, changed=0)])
            same = [bench.refresh(source, changed=0) for _ in range(rounds)]
            show("nothing changed", same)
            runs = []
            for number in range(rounds if changed else 0):
                bench.change(changed, seed=number)
                runs.append(bench.refresh(source, changed=changed))
                show(f"{changed:,} changed, {number + 1}", runs[-1:])
            if runs:
                show(f"{changed:,} changed", runs)
            for words in (["status"], ["--help"]):
                show(words[0], [bench.run(source, *words) for _ in range(rounds)])


if __name__ == "__main__":
    main()

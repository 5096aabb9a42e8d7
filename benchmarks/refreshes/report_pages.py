"""What a report costs: seconds, peak memory and the size of its index, for many tables.

    python -m benchmarks.refreshes.report_pages --tables 500 --refreshes 1000

The histories are those that so many refreshes leave: the newest lines whole, the older ones as
totals. The report is the whole command as a process of its own, from its start to its exit. Goals:
10 s, 300 MB, 200 kB for 500 tables with 1,000 refreshes each.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from benchmarks.meter import children
from tests import ROOT
from tests.harness.past_refreshes import Past, configured
from warehouse_agent.history import change_memory
from warehouse_agent.history.refresh_history import read
from warehouse_agent.storage.store import Store

SAMPLE_S = 0.1
KINDS = 8  # of pasts; the others are copies of one


def make(folder: Path, tables: int, refreshes: int) -> Path:
    """Write a warehouse of so many tables; return its configuration."""
    store, now = Store(str(folder / "warehouse")), datetime.now(UTC)
    names = [f"erp_sales_orders_{n:03}" for n in range(tables)]
    for n, name in enumerate(names[:KINDS]):
        newest = now - timedelta(minutes=7 * n)
        Past(name, refreshes, newest, changes=900 // (n + 1), lost=n % 4 == 3, seed=n).write(store)
        history = read(store, name)
        change_memory.remember(store, name, "UTC", history)
    for n, name in enumerate(names[KINDS:]):
        copy(folder / "warehouse", names[n % KINDS], name)
    return configured(folder, names)


def copy(warehouse: Path, name: str, other: str) -> None:
    """Give another table the versions, the history and the memory of one."""
    shutil.copytree(warehouse / name, warehouse / other)
    for file in (warehouse / "_driftline").rglob(f"{name}.json*"):
        shutil.copyfile(file, file.with_name(file.name.replace(name, other)))


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and of those that it started, what they share once."""
    tree = [pid, *children().get(pid, ())]
    found = 0
    for one in tree:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    found += int(line.split()[1]) << 10
    return found


@click.command()
@click.option("--tables", default=500)
@click.option("--refreshes", default=1000)
def main(tables: int, refreshes: int) -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config, output = make(folder, tables, refreshes), folder / "report"
        words = [sys.executable, "-m", "warehouse_agent.cli", "--config", str(config), "report"]
        began, peak = time.perf_counter(), 0
        with subprocess.Popen([*words, "--output", str(output)], cwd=ROOT) as process:
            while process.poll() is None:
                peak = max(peak, memory_bytes(process.pid))
                time.sleep(SAMPLE_S)
        took_s, used = time.perf_counter() - began, os.times()
        assert process.returncode == 0
        pages = [file.stat().st_size for file in (output / "tables").iterdir()]
        assert len(pages) == tables
        print(
            f"{tables:,} tables, {refreshes:,} refreshes each: {took_s:,.1f} s, processor"
            f" {used.children_user + used.children_system:,.1f} s, {peak / 1e6:,.0f} MB; index"
            f" {(output / 'index.html').stat().st_size / 1000:,.1f} kB, pages"
            f" {sum(pages) / 1e6:,.1f} MB"
        )


if __name__ == "__main__":
    main()

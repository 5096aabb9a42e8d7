"""A first load with database, source agent and warehouse on one machine: how much of it is rests.

    python -m benchmarks.refreshes.one_machine [--rows 2000000] [--rounds 1]

PostgreSQL (of the tests' wheel), `driftline-source serve` with its default settings and `driftline
refresh`, each a process of its own, as the quick start has them. A refresh rests for others who
need the processors, so the machine has to be quiet: what others used of it meanwhile is printed,
with the load before. Printed for each load: its seconds, for how long it was held back, and the
share (goal: at most 5 %).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from source_agent.scan.processors import ProcessorUsage, usage, used_since
from tests import ROOT
from tests.harness.pair import SourceProcess, environment
from tests.harness.servers import PostgreSQL

GOAL = 0.05
LOOK_S = 0.25  # between two looks at who uses the processors
WAREHOUSE = (sys.executable, "-m", "warehouse_agent.cli")


def written(folder: Path, server: PostgreSQL, rows: int) -> Path:
    """Make the table; write source.toml, and return its path."""
    server.create_database("one")
    with server.superuser("one") as connection:
        connection.execute(
            "CREATE TABLE items AS SELECT n::bigint AS id, md5(n::text) AS note,"
            f" n % 1000 AS amount, now() AS at FROM generate_series(1, {rows}) n"
        )
        connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
        connection.execute("VACUUM ANALYZE items")
        connection.execute("CHECKPOINT")
    path = folder / "source.toml"
    path.write_text(
        f'[database]\nurl = "{server.url("postgres", "one")}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\naudit_file = "audit.jsonl"\n'
        '[relations.items]\ntable = "items"\n'
    )
    return path


def load(folder: Path, address: str, number: int) -> tuple[float, float, float | None]:
    """Load the table into a new warehouse.

    Returns the seconds, those that were held back, and the share of the processors that others than
    this benchmark used meanwhile; None: it is not known.
    """
    config = folder / f"warehouse{number}.toml"
    config.write_text(
        f'[warehouse]\npath = "warehouse{number}"\n'
        f'[sources.erp]\naddress = "{address}"\ninsecure = true\n'
        '[fragments.items]\nsource = "erp"\n'
    )
    began = time.monotonic()
    looks = list[tuple[float, ProcessorUsage | None]]()
    with subprocess.Popen(
        [*WAREHOUSE, "--config", config, "refresh", "--json"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
    ) as process:  # fmt: skip
        while True:  # what it starts, such as a JVM, is its child only while it lives
            looks.append((time.monotonic(), usage()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
                break
        seconds = time.monotonic() - began
        assert process.returncode == 0
        assert process.stdout is not None
        held_s = float(json.loads(process.stdout.read())["held_back_s"])
    return seconds, held_s, others_share(looks)


def others_share(looks: Sequence[tuple[float, ProcessorUsage | None]]) -> float | None:
    """Return the share of the processors that others than this benchmark used between the first
    look, (seconds, use), and the last; None: it is not known."""
    known = [(at, use) for at, use in looks if use is not None]
    if len(known) < 2:
        return None
    (began, first), (ended, last) = known[0], known[-1]
    ours_s = sum(used_since(a, b, [os.getpid()]) for (_, a), (_, b) in pairwise(known))
    return (last.worked_s - first.worked_s - ours_s) / ((ended - began) * first.processors)


@click.command(help=__doc__)
@click.option("--rows", default=2_000_000, show_default=True)
@click.option("--rounds", default=1, show_default=True)
def main(rows: int, rounds: int) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory() as name, PostgreSQL() as server:
        folder = Path(name)
        with SourceProcess(written(folder, server, rows)) as agent:
            for number in range(rounds):
                seconds, held_s, share = load(folder, agent.address, number)
                told = "not known" if share is None else f"{share:.1%}"
                print(
                    f"load of {rows:,} rows: {seconds:.1f} s, held back {held_s:.1f} s"
                    f" ({held_s / seconds:.1%}); others used {told} of the processors"
                )
    print(f"goal: held back for at most {GOAL:.0%}")


if __name__ == "__main__":
    main()

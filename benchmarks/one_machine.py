"""A first load with database, source agent and warehouse on one machine: how much of it is rests.

    python -m benchmarks.one_machine [--rows 2000000] [--rounds 1]

PostgreSQL (of the tests' wheel), `driftline-source serve` with its default settings and `driftline
refresh`, each a process of its own, as the quick start has them. A refresh rests for others who
need the processors, so the machine has to be quiet: what others used of it meanwhile is printed,
with the load before. Printed for each load: its seconds, for how long it was held back, and the
share (goal: at most 5 %).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from source_agent.scan.processors import Usage, usage, used_since
from tests import ROOT
from tests.harness.pair import SourceProcess, environment
from tests.harness.servers import PostgreSQL

GOAL = 0.05
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


def load(folder: Path, address: str, number: int) -> tuple[float, float]:
    """Load the table into a new warehouse; return the seconds, and those that were held back."""
    config = folder / f"warehouse{number}.toml"
    config.write_text(
        f'[warehouse]\npath = "warehouse{number}"\n'
        f'[sources.erp]\naddress = "{address}"\ninsecure = true\n'
        '[fragments.items]\nsource = "erp"\n'
    )
    began = time.monotonic()
    done = subprocess.run(
        [*WAREHOUSE, "--config", config, "refresh", "--json"],
        check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    return time.monotonic() - began, float(json.loads(done.stdout)["held_back_s"])


def others_share(before: Usage | None, after: Usage | None, seconds: float) -> float | None:
    """Return the share of the processors that others than this benchmark used; None: not known."""
    if before is None or after is None:
        return None
    ours = used_since(before, after, [os.getpid()])
    return (after.worked_s - before.worked_s - ours) / (seconds * after.processors)


@click.command(help=__doc__)
@click.option("--rows", default=2_000_000, show_default=True)
@click.option("--rounds", default=1, show_default=True)
def main(rows: int, rounds: int) -> None:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory() as name, PostgreSQL() as server:
        folder = Path(name)
        with SourceProcess(written(folder, server, rows)) as agent:
            for number in range(rounds):
                before = usage()
                seconds, held_s = load(folder, agent.address, number)
                share = others_share(before, usage(), seconds)
                told = "not known" if share is None else f"{share:.1%}"
                print(
                    f"load of {rows:,} rows: {seconds:.1f} s, held back {held_s:.1f} s"
                    f" ({held_s / seconds:.1%}); others used {told} of the processors"
                )
    print(f"goal: held back for at most {GOAL:.0%}")


if __name__ == "__main__":
    main()

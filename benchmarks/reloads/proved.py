"""What a proof costs in one thread, in as many as there are cores, and in processes.

    python -m benchmarks.reloads.proved --rows 1.2e6 --rounds 3

Rows as of `copied` are loaded, then read back and fingerprinted in each way in turn. The processes
were started before, as in a refresh, which expects its proof. Printed are the least seconds of the
rounds, and their ratio to those of one thread; the digests must be equal.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import click

from benchmarks.reloads.copied import LAYOUT, LOADED, staged
from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, SALT
from warehouse_agent.planning import step_places
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import proof, scan
from warehouse_agent.tasks.processes import PROCESSES
from warehouse_agent.tasks.staged_rows import write_staged
from warehouse_agent.tasks.steps import STEP_THREADS, Steps

NEVER = 1 << 60
WAYS = {"one thread": (1, NEVER), "threads": (STEP_THREADS, NEVER), "processes": (STEP_THREADS, 0)}


@click.command(help=__doc__)
@click.option("--rows", type=float, default=1.2e6, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(rows: float, rounds: int) -> None:
    steps = Steps(NoSpark(), 1 << 50)
    with tempfile.TemporaryDirectory() as made:
        store = Store(made)
        store.write(KEY, PRIVATE, "keys", "t.key", private=True)
        key = KeyFile(store.uri(PRIVATE, "keys", "t.key"))
        frames, _ = staged(Path(made) / "staged", int(rows), 0.0)
        files = write_staged(steps, DataFolder(store, "t", "load"), frames, LAYOUT, key, LOADED)
        least, found = dict.fromkeys(WAYS, float("inf")), set[bytes]()
        for _ in range(rounds):
            for way, (threads, size) in WAYS.items():
                with ExitStack() as patches:
                    patches.enter_context(mock.patch.object(scan, "THREADS_MAX", threads))
                    patches.enter_context(mock.patch.object(step_places, "PROCESS_BYTES", size))
                    if size == 0:
                        PROCESSES.start(threads)
                        proof.read_back(steps, files[:1], LAYOUT, key, SALT, name="t")
                    start = time.monotonic()
                    digest = proof.read_back(steps, files, LAYOUT, key, SALT, name="t")
                    least[way] = min(least[way], time.monotonic() - start)
                    found.add(digest.sum_bytes())
        PROCESSES.close()
    assert len(found) == 1
    for way, seconds in least.items():
        ratio = seconds / least["one thread"]
        print(f"{way:10} {seconds:6.2f} s  {ratio:.2f} × one thread, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()

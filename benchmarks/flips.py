"""What a warehouse version costs: a flip of one of 50 tables, and opening the newest version.

    python -m benchmarks.flips [TABLES] [ROUNDS]

Local disk, one process, no Spark. A flip reads the newest version and commits the next one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace

from warehouse_agent.planning.flip import Kind, Member, moved
from warehouse_agent.storage import warehouse_versions
from warehouse_agent.storage.store import Store


def main(tables: int = 50, rounds: int = 250) -> None:
    """Print medians and the slowest of each, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        at = "2026-01-01T00:00:00Z"
        members = [
            Member(f"t{i}", Kind.FRAGMENT, f"t{i}", 0, at, "exact", "total", at)
            for i in range(tables)
        ]
        warehouse_versions.flip(store, lambda before: moved(before, members))
        flips, opens = [], []
        for number in range(1, rounds + 1):
            changed = replace(members[number % tables], version=number)
            began = time.perf_counter()
            warehouse_versions.flip(store, lambda before, one=changed: moved(before, [one]))
            flips.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            warehouse_versions.newest(store)
            opens.append((time.perf_counter() - began) * 1000)
    for what, times in (("flip", flips), ("open", opens)):
        print(
            f"{what}: median {statistics.median(times):.1f} ms, "
            f"slowest of {rounds} {max(times):.1f} ms ({tables} tables)"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

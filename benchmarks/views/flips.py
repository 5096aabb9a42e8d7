"""What a warehouse version costs: the commit of a table, a flip of one of 50, opening the newest.

    python -m benchmarks.views.flips [TABLES] [ROUNDS]

Local disk, one process, no Spark. A table is opened, a version of it committed and opened again. A
flip reads the newest version and commits the next one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial

from tests.warehouse_agent.storage.test_table_formats import LAYOUT, RECORD
from warehouse_agent.storage import formats
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion
from warehouse_agent.visible_versions import warehouse_versions
from warehouse_agent.visible_versions.members import Member, MemberKind, moved


def main(tables: int = 50, rounds: int = 250) -> None:
    """Print medians and the slowest of each, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        at = "2026-01-01T00:00:00Z"
        members = [
            Member(f"t{i}", MemberKind.FRAGMENT, f"t{i}", 0, at, "exact", "total", at)
            for i in range(tables)
        ]
        warehouse_versions.flip(store, lambda before: moved(before, members))
        commits, flips, opens = [], [], []
        for number in range(1, rounds + 1):
            member = members[number % tables]
            commits.append(_commit_ms(store, member.name, number))
            changed = replace(member, version=number)
            began = time.perf_counter()
            warehouse_versions.flip(store, partial(moved, changed=[changed]))
            flips.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            warehouse_versions.newest(store)
            opens.append((time.perf_counter() - began) * 1000)
    for what, times in (("commit", commits), ("flip", flips), ("open", opens)):
        print(
            f"{what}: median {statistics.median(times):.1f} ms, "
            f"slowest of {rounds} {max(times):.1f} ms ({tables} tables)"
        )


def _commit_ms(store: Store, name: str, number: int) -> float:
    """Return the ms of one commit of a table that replaces its file, and of opening it twice."""
    began = time.perf_counter()
    base = formats.head(store, name)
    path = f"data-{number:012x}-a/{number}.parquet"
    file = DataFile(path, store.uri(name, path), 1, 1, (number, number))
    new = NewVersion(base, LAYOUT, [file], base.files if base else (), RECORD)
    formats.commit(store, name, new)
    formats.head(store, name)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

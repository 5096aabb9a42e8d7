"""Readers of warehouse versions while a writer flips, and is killed at random and started again.

Every table of one version carries the number of the round that wrote it. A reader pins a version,
reads the rows of all its tables and must find one number in all of them, never a smaller one than
before, and no error. Beside it, the newest versions of the tables are read without asking: how
often these were out of step is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.harness.pair import environment

pytestmark = pytest.mark.slow

TABLES = 3
READS, KILLS = 150, 4
START_S_MAX = 60.0
WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from tests.faults.test_warehouse_readers import TABLES
from tests.warehouse_agent.storage.test_table_formats import LAYOUT, RECORD
from warehouse_agent.planning.flip import Kind, Member, moved
from warehouse_agent.storage import formats, warehouse_versions
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewVersion

store = Store(sys.argv[1])
newest = warehouse_versions.newest(store)
rounds = [m.inputs["round"] for m in newest.members.values()] if newest else [-1]
number = 1 + max(rounds)
while True:
    members = []
    for name in (f"t{i}" for i in range(TABLES)):
        base = formats.head(store, name)
        path = f"data-{number:012x}-{len(list(Path(store.table(name)).glob('data-*')))}/a.parquet"
        file = Path(store.table(name), path)
        file.parent.mkdir(parents=True)
        rows = pa.table({f.name: pa.array([number], f.type) if f.name == "c0" else pa.array(
            [None if f.nullable else 0], f.type) for f in LAYOUT.file_schema}, LAYOUT.file_schema)
        pq.write_table(rows, file)
        new = DataFile(path, store.uri(name, path), file.stat().st_size, 1, (number, number))
        removed = base.files if base else ()
        version = formats.commit(store, name, NewVersion(base, LAYOUT, [new], removed, RECORD))
        members.append(Member(name, Kind.FRAGMENT, name, version, "t", "exact", "total", "now",
                              inputs={"round": number}))
    warehouse_versions.flip(store, lambda before: moved(before, members))
    number += 1
"""
READER = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from tests.faults.test_warehouse_readers import TABLES
from warehouse_agent.storage import formats, warehouse_versions
from warehouse_agent.storage.store import Store

def number(snapshot):
    (file,) = snapshot.files
    return pq.read_table(file.uri.removeprefix("file://"))["c0"].to_pylist()[0]

store, reads, folder = Store(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
last = last_version = -1
heads = done = 0
is_last = False
while not is_last:
    is_last = (folder / "enough").exists()  # and once more, with what is there now
    pinned = warehouse_versions.newest(store)
    names = sorted(pinned.members)
    found = {number(formats.head(store, n, version=pinned.members[n].version)) for n in names}
    assert len(names) == TABLES and len(found) == 1, f"mixed: {found}"
    assert min(found) >= last and pinned.number >= last_version, "backwards"
    (last,), last_version = found, pinned.number
    heads += len({number(formats.head(store, n)) for n in names}) > 1
    done += 1
    if done == reads:
        (folder / f"{os.getpid()}.read").touch()
print(last_version, heads, done)
"""


@pytest.mark.parametrize(
    ("reads", "kills"), [(READS, KILLS), pytest.param(10_000, 100, marks=pytest.mark.soak)]
)
def test_readers_beside_a_writer_that_is_killed(tmp_path: Path, reads: int, kills: int) -> None:
    rng = random.Random(1)
    table, folder = tmp_path / "warehouse", tmp_path / "signs"
    folder.mkdir()
    deadline = time.monotonic() + START_S_MAX + 60 * kills

    def start(code: str, *more: str) -> subprocess.Popen[str]:
        words, pipe = [sys.executable, "-c", code, str(table), *more], subprocess.PIPE
        return subprocess.Popen(
            words, stdout=pipe, stderr=pipe, text=True, env=environment(), cwd=ROOT
        )

    def versions() -> int:
        return len(list((table / "_driftline" / "warehouse" / "_delta_log").glob("*.json")))

    def wait_for(count: int) -> None:
        """Wait until there are so many versions of the warehouse."""
        while versions() < count:
            assert writer.poll() is None, writer.communicate()[1]
            assert time.monotonic() < deadline, "the writer makes no versions"
            time.sleep(0.05)

    writer = start(WRITER)
    wait_for(1)
    count = min(os.cpu_count() or 1, 2)
    readers = [start(READER, str(reads), str(folder)) for _ in range(count)]
    killed = 0
    while killed < kills or len(list(folder.glob("*.read"))) < count:
        wait_for(versions() + 1)  # each life makes one, however long it takes to start
        time.sleep(rng.uniform(0.0, 1.5))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        killed += 1
        writer = start(WRITER)
        assert all(one.poll() is None for one in readers), [one.communicate() for one in readers]
        assert time.monotonic() < deadline, "readers do not end"
    wait_for(versions() + 1)
    (folder / "enough").touch()
    ended = [one.communicate(timeout=START_S_MAX) for one in readers]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert [one.returncode for one in readers] == [0] * count, ended
    seen, heads, done = zip(*(map(int, out.split()) for out, _ in ended), strict=True)
    print(
        f"{sum(done)} reads, {killed} kills, {max(seen)} versions: 0 mixed; "
        f"{sum(heads)} mixed reads of heads"
    )
    assert min(done) >= reads
    assert min(seen) > killed

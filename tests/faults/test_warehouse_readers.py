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
import sys
import pyarrow.parquet as pq
from tests.faults.test_warehouse_readers import TABLES
from warehouse_agent.storage import formats, warehouse_versions
from warehouse_agent.storage.store import Store

def number(snapshot):
    (file,) = snapshot.files
    return pq.read_table(file.uri.removeprefix("file://"))["c0"].to_pylist()[0]

store, reads = Store(sys.argv[1]), int(sys.argv[2])
last = last_version = -1
heads = 0
for _ in range(reads):
    pinned = warehouse_versions.newest(store)
    names = sorted(pinned.members)
    found = {number(formats.head(store, n, version=pinned.members[n].version)) for n in names}
    assert len(names) == TABLES and len(found) == 1, f"mixed: {found}"
    assert min(found) >= last and pinned.number >= last_version, "backwards"
    (last,), last_version = found, pinned.number
    heads += len({number(formats.head(store, n)) for n in names}) > 1
print(last_version, heads)
"""


@pytest.mark.parametrize(
    ("reads", "kills"), [(READS, KILLS), pytest.param(20_000, 100, marks=pytest.mark.soak)]
)
def test_readers_beside_a_writer_that_is_killed(tmp_path: Path, reads: int, kills: int) -> None:
    rng = random.Random(1)
    words = [sys.executable, "-c", WRITER, str(tmp_path)]

    def start(words: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, stdout=pipe, stderr=pipe, text=True, env=environment(), cwd=ROOT
        )

    writer = start(words)
    deadline = time.monotonic() + START_S_MAX
    while not (tmp_path / "_driftline" / "warehouse" / "_delta_log").exists():
        assert writer.poll() is None, writer.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    count = min(os.cpu_count() or 1, 2)
    readers = [
        start([sys.executable, "-c", READER, str(tmp_path), str(reads)]) for _ in range(count)
    ]
    killed = 0
    while killed < kills or any(one.poll() is None for one in readers):
        time.sleep(rng.uniform(1.5, 4.0))  # it takes a second to start
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        killed += 1
        writer = start(words)
        assert time.monotonic() < deadline + 60 * kills, "readers do not end"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    ended = [one.communicate() for one in readers]
    assert [one.returncode for one in readers] == [0] * count, ended
    versions, heads = zip(*(map(int, out.split()) for out, _ in ended), strict=True)
    print(
        f"{count * reads} reads, {killed} kills, {max(versions)} versions: 0 mixed; "
        f"{sum(heads)} mixed reads of heads"
    )
    assert max(versions) >= 3, "the readers saw hardly any change"

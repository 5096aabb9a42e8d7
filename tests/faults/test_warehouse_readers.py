"""Readers of warehouse versions while refreshes move a view, killed at random and started again.

Each round changes every row of two tables in one transaction, and how many there are. A reader pins
a version, in Spark by `at` and without Driftline as the documentation says; it must find one round
in both tables and in the view, all of its rows, never an earlier round than before, and no error.
Beside it, the newest versions of the Delta tables are read without asking: how often these were out
of step is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import ROOT
from tests.harness.forks import Fork
from tests.harness.jvm import jvm_options
from tests.harness.pair import environment
from tests.harness.views import Sites
from warehouse_agent.spark.session import DeferredSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLES = {
    "erp": {
        "orders": "id INTEGER PRIMARY KEY, customer INT, round INT",
        "customer": "id INTEGER PRIMARY KEY, round INT",
    }
}
VIEWS = {
    "joined": "SELECT o.id, o.round, c.round AS other FROM erp.orders o JOIN erp.customer c "
    "ON c.id = o.customer"
}
CUSTOMERS, READ_TABLES = 5, 3
PER_SPARK = 5  # pins that are read without Spark for each that is read in it
READERS_MAX = 8  # each has a JVM
START_S_MAX = 60.0
WRITER = """
import sqlite3, sys
from tests.faults.test_warehouse_readers import CUSTOMERS, orders, settings
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select

config = load(sys.argv[1])
runner = Runner(DeferredSession(settings()), config)
legacy = sqlite3.connect(sys.argv[2], timeout=60)
while True:
    with legacy:
        (number,) = legacy.execute("SELECT COALESCE(MAX(round), 0) + 1 FROM customer").fetchone()
        legacy.execute("DELETE FROM orders")
        legacy.executemany("INSERT INTO orders VALUES (?, ?, ?)",
                           [(i, i % CUSTOMERS, number) for i in range(orders(number))])
        legacy.executemany("REPLACE INTO customer VALUES (?, ?)",
                           [(i, number) for i in range(CUSTOMERS)])
    reports = list(runner.refresh(select(config, (), True, ()), Options()))
    assert not any(r.error or r.stale for r in reports), reports
"""
READER = """
import json, os, sys
from pathlib import Path
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.faults.test_warehouse_readers import (
    CUSTOMERS, PER_SPARK, READ_TABLES, orders, settings)
from warehouse_agent import at
from warehouse_agent.spark.session import start

path, reads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
spark = start(settings())

def rows(folder, version=None):
    # Not by to_pyarrow_table: threads of Arrow that wait for Python abort a process that ends.
    files = DeltaTable(f"{path}/{folder}", version=version).file_uris()
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

def rounds(tables):
    found = {row[name] for rows in tables.values() for row in rows
             for name in ("round", "other") if name in row}
    if len(found) != 1:
        return None
    (number,) = found
    counts = {name: len(rows) for name, rows in tables.items()}
    right = {"erp.orders": orders(number), "erp.customer": CUSTOMERS, "joined": orders(number)}
    return number if counts == right else None

def in_spark():
    pinned = at(spark, path)
    assert len(pinned.names) == READ_TABLES and pinned.stale("joined") is None
    return {n: [row.asDict() for row in pinned.read(n).collect()] for n in pinned.names}

def without_us(newest):
    return {m["name"]: rows(m["folder"], None if newest else m["version"])
            for m in rows("_driftline/warehouse")}

done, heads, last, is_last = 0, 0, 0, False
while not is_last:
    is_last = (folder / "enough").exists()  # and once more, with what is there now
    for turn in range(1 + PER_SPARK):
        tables = without_us(newest=False) if turn else in_spark()
        number = rounds(tables)
        assert number is not None, f"mixed: {tables}"
        assert number >= last, f"backwards: {number} after {last}"
        last, done = number, done + 1
    heads += rounds(without_us(newest=True)) is None
    if done >= reads:
        (folder / f"{os.getpid()}.read").touch()
print(json.dumps([done, heads, last]))
"""


def orders(number: int) -> int:
    """Return how many rows there are in a round."""
    return 20 + number % 7


def settings() -> dict[str, str]:
    """Return those of a small session of its own."""
    return {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.sql.shuffle.partitions": "1",
    }


class Processes(ExitStack):
    """Processes, each with its JVM in a group of its own, which is killed in the end."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def start(self, code: str, *words: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            made = Fork(
                ["-c", code, *words],
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.callback(self.kill, made)
        return made

    @property
    def said(self) -> str:
        return self._log.read_text()

    @staticmethod
    def kill(one: subprocess.Popen[str]) -> None:
        """Kill a process and its JVM."""
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


class Writer:
    """Refreshes a warehouse again and again, also after it was killed."""

    def __init__(self, processes: Processes, sites: Sites, legacy: Path, deadline: float) -> None:
        self._processes, self._deadline = processes, deadline
        self._words = (str(sites.toml()), str(legacy))
        self._log = sites.warehouse / "_driftline" / "warehouse" / "_delta_log"
        self._process = processes.start(WRITER, *self._words)
        self.killed = 0

    @property
    def versions(self) -> int:
        return len(list(self._log.glob("*.json")))

    def wait(self) -> None:
        """Wait for one version of the warehouse more."""
        wanted = self.versions + 1
        while self.versions < wanted:
            assert self._process.poll() is None, self._processes.said
            assert time.monotonic() < self._deadline, "the writer makes no versions"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, and start it again."""
        self._processes.kill(self._process)
        self.killed += 1
        self._process = self._processes.start(WRITER, *self._words)


@pytest.mark.parametrize(
    ("reads", "kills", "count"),
    [
        (30, 1, 1),
        pytest.param(
            10_000, 100, min(len(os.sched_getaffinity(0)), READERS_MAX), marks=pytest.mark.soak
        ),
    ],
)
def test_readers_beside_a_writer_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: int, kills: int, count: int
) -> None:
    """`reads`: of all tables of a pinned version, by all `count` readers together."""
    rng, signs = random.Random(1), tmp_path / "signs"
    signs.mkdir()
    deadline = time.monotonic() + START_S_MAX + 60 * (kills + 1)  # lives of the writer
    with (
        Sites(DeferredSession({}), tmp_path, TABLES, VIEWS) as sites,
        Processes(tmp_path / "log") as processes,
    ):
        writer = Writer(processes, sites, tmp_path / "erp.db", deadline)
        writer.wait()
        words = (str(sites.warehouse), str(-(-reads // count)), str(signs))
        readers = [processes.start(READER, *words) for _ in range(count)]
        while writer.killed < kills or len(list(signs.glob("*.read"))) < count:
            writer.wait()  # each life makes a version, however long it takes to start
            time.sleep(rng.uniform(0.0, 5.0))
            writer.kill()
            assert all(one.poll() is None for one in readers), processes.said
            assert time.monotonic() < deadline, "readers do not end"
        writer.wait()
        (signs / "enough").touch()
        out = [one.communicate(timeout=START_S_MAX) for one in readers]
        assert [one.returncode for one in readers] == [0] * count, processes.said
        versions = writer.versions
    done, heads, last = zip(*(json.loads(text) for text, _ in out), strict=True)
    with capsys.disabled():
        print(
            f"\n{sum(done)} pinned reads by {count} readers, {writer.killed} kills, {versions} "
            f"versions: 0 mixed; {sum(heads)} times the newest versions of the tables were"
        )
    assert sum(done) >= reads
    assert min(last) > writer.killed  # rounds: each life published one

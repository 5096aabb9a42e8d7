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
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.harness.jvm import jvm_options
from tests.harness.pair import environment
from tests.harness.views import Sites
from warehouse_agent.spark.session import Deferred

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
from warehouse_agent.spark.session import Deferred
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select

config = load(sys.argv[1])
runner = Runner(Deferred(settings()), config)
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
from deltalake import DeltaTable
from tests.faults.test_warehouse_readers import (
    CUSTOMERS, PER_SPARK, READ_TABLES, orders, settings)
from warehouse_agent import at
from warehouse_agent.spark.session import start

path, reads, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
spark = start(settings())

def members():
    return DeltaTable(f"{path}/_driftline/warehouse").to_pyarrow_table().to_pylist()

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
    return {m["name"]: DeltaTable(f"{path}/{m['folder']}",
                                  version=None if newest else m["version"])
            .to_pyarrow_table().to_pylist() for m in members()}

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


@pytest.mark.parametrize(
    ("reads", "kills"), [(100, 3), pytest.param(10_000, 100, marks=pytest.mark.soak)]
)
def test_readers_beside_a_writer_that_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reads: int, kills: int
) -> None:
    """`reads`: of all tables of a pinned version, by all readers together."""
    rng = random.Random(1)
    signs = tmp_path / "signs"
    signs.mkdir()
    deadline = time.monotonic() + START_S_MAX + 60 * kills
    count = min(len(os.sched_getaffinity(0)), READERS_MAX)
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *more: str) -> subprocess.Popen[str]:
        words, log = [sys.executable, "-c", code, *more], (tmp_path / "log").open("a")
        running.append(
            subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
                cwd=ROOT,
                start_new_session=True,
            )
        )
        log.close()
        return running[-1]

    def wait_for(number: int) -> None:
        """Wait until there are so many versions of the warehouse."""
        while versions() < number:
            assert writer.poll() is None, said()
            assert time.monotonic() < deadline, "the writer makes no versions"
            time.sleep(0.05)

    def said() -> str:
        return (tmp_path / "log").read_text()

    def versions() -> int:
        log = sites.warehouse / "_driftline" / "warehouse" / "_delta_log"
        return len(list(log.glob("*.json")))

    def kill(one: subprocess.Popen[str]) -> None:
        """Kill a process and its JVM."""
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()

    try:
        with Sites(Deferred({}), tmp_path, TABLES, VIEWS) as sites:
            toml, legacy = str(sites.toml()), str(tmp_path / "erp.db")
            writer = start(WRITER, toml, legacy)
            wait_for(1)
            share = str(-(-reads // count))
            readers = [start(READER, str(sites.warehouse), share, str(signs)) for _ in range(count)]
            killed = 0
            while killed < kills or len(list(signs.glob("*.read"))) < count:
                wait_for(versions() + 1)  # each life makes one, however long it takes to start
                time.sleep(rng.uniform(0.0, 5.0))
                kill(writer)
                killed += 1
                writer = start(WRITER, toml, legacy)
                assert all(one.poll() is None for one in readers), said()
                assert time.monotonic() < deadline, "readers do not end"
            wait_for(versions() + 1)
            made = versions()
            (signs / "enough").touch()
            out = [one.communicate(timeout=START_S_MAX) for one in readers]
            assert [one.returncode for one in readers] == [0] * count, said()
            done, heads, last = zip(*(json.loads(text) for text, _ in out), strict=True)
            with capsys.disabled():
                print(
                    f"\n{sum(done)} pinned reads by {count} readers, {killed} kills, {made} "
                    f"versions: 0 mixed; {sum(heads)} times the newest versions of the tables were"
                )
            assert sum(done) >= reads
            assert min(last) > killed  # rounds: each life published one
    finally:
        for one in running:
            if one.poll() is None:
                kill(one)

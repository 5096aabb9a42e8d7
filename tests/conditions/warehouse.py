"""Conditions of the warehouse: Spark, the files, and the disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conditions.conditions import Bench, cause
from tests.harness.tls_pair import TlsPair
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import proof
from warehouse_agent.tasks.scan import FilePiece, Function

BIG_BYTES = 16_000  # a note of which ROWS do not fit into a disk of 6 MiB
DISK_MIB = 2


@cause("another agent works on the table", "LOCKED", 75, "orders", retried=False)
def locked(bench: Bench) -> Iterator[TlsPair]:
    with bench.sqlite() as legacy, bench.pair(legacy) as pair:
        with Store(str(pair.warehouse)).lock("orders"):
            yield pair
        bench.converge(pair)


@cause(
    "most data files are gone", "WAREHOUSE", 1, "missing; the first is", ".parquet", "verify",
    retried=False,
)  # fmt: skip
def gone(bench: Bench) -> Iterator[TlsPair]:
    with bench.sqlite() as legacy, bench.pair(legacy) as pair:
        pair.refresh("orders")
        table, elsewhere = pair.warehouse / "orders", bench.folder / "elsewhere"
        shutil.copytree(table, elsewhere)
        for file in table.rglob("*.parquet"):
            file.unlink()
        legacy.execute("UPDATE orders SET note = 'new' WHERE id < 5")
        yield pair
        shutil.copytree(elsewhere, table, dirs_exist_ok=True)
        bench.converge(pair)


@cause("a Python worker of Spark is killed", "SPARK", 75, "was killed", "memory", retried=True)
def worker_killed(bench: Bench) -> Iterator[TlsPair]:
    """At the first proof: the task kills its own process, as the out-of-memory killer would."""
    with bench.sqlite() as legacy, bench.pair(legacy) as pair, _first_worker_killed(bench.folder):
        pair.small_bytes = 0  # in a task, and not in this process
        yield pair
        bench.converge(pair)


@contextlib.contextmanager
def _first_worker_killed(folder: Path) -> Iterator[None]:
    check = proof._check
    marker = str(folder / "killed")

    def dying(*arguments: Any) -> Function:
        checking = check(*arguments)

        def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
            if not os.path.exists(marker):
                os.close(os.open(marker, os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
            yield from checking(pieces)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_check", dying)
        yield
    assert os.path.exists(marker)


@cause("the warehouse's disk is full when rows come", "WAREHOUSE", 1, "space", retried=False)
def full_staging(bench: Bench) -> Iterator[TlsPair]:
    with bench.sqlite(note_bytes=BIG_BYTES) as legacy, bench.pair(legacy) as pair:
        mount = bench.fixture("small_disk")
        pair.disk = Path(mount(DISK_MIB)) / "warehouse"
        yield pair
        mount(20 * DISK_MIB)
        bench.converge(pair)


@cause("the warehouse's disk is full at the commit", "WAREHOUSE", 1, "space", retried=False)
def full_commit(bench: Bench) -> Iterator[TlsPair]:
    commit = formats.commit

    with (
        bench.sqlite() as legacy,
        bench.pair(legacy) as pair,
        pytest.MonkeyPatch.context() as patch,
    ):
        pair.disk = Path(bench.fixture("small_disk")(DISK_MIB)) / "warehouse"

        def on_a_full_disk(*args: Any, **options: Any) -> int:
            with (
                contextlib.suppress(OSError),
                (pair.warehouse / "filler").open("wb", buffering=0) as filler,
            ):
                while True:
                    filler.write(bytes(4096))
            return commit(*args, **options)

        patch.setattr(formats, "commit", on_a_full_disk)
        yield pair
        patch.undo()
        (pair.warehouse / "filler").unlink()
        bench.converge(pair)

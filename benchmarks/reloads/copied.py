"""What a copy costs that replaces a table: statistics carried on, and the change feed.

    python -m benchmarks.reloads.copied --rows 4e6
    python -m benchmarks.reloads.copied --rows 4e6 --spark 'local[2]' --lot-mib 256
    python -m benchmarks.reloads.copied --rows 100e6 --spark 'local[2]' --folder /large

Rows of some 70 bytes with a composite key are staged and loaded, then staged again with a share of
them changed, as a copy ships them. No source and no network are in it: a load, without any row
before it, is what the copy is compared with. Printed are, for each step, seconds, processor
seconds of all processes, the most memory that they held at once, and the most bytes of temporary
files beside the table's. The changed rows must be counted as updates, and be in the feed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from unittest import mock

import click
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from driftline.arrays import Bools, Integers
from driftline.rows import frames
from driftline.rows.columns import RaggedColumn, join
from driftline.rows.digests import mix
from driftline.rows.fingerprints import fingerprints

from benchmarks import meter
from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, SALT
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import UPDATES, lay_out
from warehouse_agent.planning import step_places
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import change_feed
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_rows import RowsBefore, write_staged
from warehouse_agent.tasks.staging import FILE_BYTES
from warehouse_agent.tasks.steps import Steps

MADE = recipe(["int8", "int4", "int4", "int8", "bytea"], 2)
LAYOUT = lay_out(MADE, {}, where="t")
FRAME_ROWS = 20_000
TEXT_BYTES = 32
LOADED = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
COPIED = StatisticsStamp(1, 1e9 + 60, 60.0, VersionClock().after(0, 1e9), 1, 0.1)
_Result = TypeVar("_Result")


def staged(folder: Path, rows: int, changed: float) -> tuple[list[str], int]:
    """Stage rows, of which a share is changed; return the files' URIs, and how many are."""
    folder.mkdir(parents=True)
    dice, held, count = np.random.default_rng(1), bytearray(), 0
    uris: list[str] = []
    for at in range(0, rows, FRAME_ROWS):
        numbers = np.arange(at, min(at + FRAME_ROWS, rows))
        is_changed = dice.random(len(numbers)) < changed
        count += int(is_changed.sum())
        frame = packed(numbers, is_changed)
        held += len(frame).to_bytes(4, "little") + frame
        if len(held) >= FILE_BYTES or numbers[-1] == rows - 1:
            path = folder / f"{len(uris):06d}.frames"
            path.write_bytes(held)
            uris.append(f"file://{path}")
            held.clear()
    return uris, count


def packed(numbers: Integers, is_changed: Bools) -> bytes:
    """Return the frame of rows by number."""
    dice = np.random.default_rng(int(numbers[0]))
    values = dice.integers(0, 1 << 20, len(numbers)) + is_changed
    texts = dice.integers(97, 123, (len(numbers), TEXT_BYTES)).astype(np.uint8)
    columns = [
        fixed(numbers // 5, ">i8"),
        fixed(numbers % 5, ">i4"),
        fixed(values, ">i4"),
        fixed(numbers * 7, ">i8"),
        RaggedColumn(np.full(len(numbers), TEXT_BYTES, np.int32), texts.reshape(-1)),
    ]
    block = join(columns)
    digest = mix(SALT, *fingerprints(KEY, MADE)(block.rows())).digest()
    return frames.encode(block, MADE, SALT, digest, level=1)


def fixed(values: Integers, kind: str) -> RaggedColumn:
    data = values.astype(kind)
    return RaggedColumn(np.full(len(data), data.itemsize, np.int32), data.view(np.uint8))


@contextmanager
def measured(step: str, rows: int, temporary: Path, table: Callable[[], int]) -> Iterator[None]:
    """Print what a step costs."""
    done, most = threading.Event(), [0, 0]

    def look() -> None:
        while not done.wait(meter.SAMPLE_S_MAX):
            below = meter.children()
            most[0] = max(most[0], meter.resident_bytes([os.getpid()], below))
            most[1] = max(most[1], size_of(temporary))

    before, start = meter.cpu_s([os.getpid()]), time.monotonic()
    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield
    finally:
        wall_s, cpu_s = time.monotonic() - start, meter.cpu_s([os.getpid()]) - before
        done.set()
        watch.join()
    print(
        f"{step:5} {wall_s:7.1f} s  {cpu_s:7.1f} processor s ({cpu_s / rows * 1e6:.2f} µs a row)  "
        f"memory {most[0] / 1e6:,.0f} MB  temporary {most[1] / 1e6:,.1f} MB "
        f"({most[1] / table():.3f} × the table)",
        flush=True,
    )


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder, which others may remove meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                size += (Path(place) / name).stat().st_size
            except OSError:
                continue
    return size


def run(folder: Path, steps: Steps, rows: int, changed: float, temporary: Path) -> None:
    """Load, copy and compare; raise AssertionError if a row is not counted as it should."""
    store = Store(str(folder))
    store.write(KEY, PRIVATE, "keys", "t.key", private=True)
    key, files = KeyFile(store.uri(PRIVATE, "keys", "t.key")), dict[str, list[DataFile]]()
    first, _ = staged(folder / "staged" / "load", rows, 0.0)
    second, count = staged(folder / "staged" / "copy", rows, changed)

    def table() -> int:
        return sum(f.size for f in files["load"])

    with measured("load", rows, temporary, table):
        place = DataFolder(store, "t", "load")
        files["load"] = write_staged(steps, place, first, LAYOUT, key, LOADED)
    with measured("copy", rows, temporary, table):
        place, before = DataFolder(store, "t", "copy"), RowsBefore(files["load"], None)
        files["copy"] = write_staged(steps, place, second, LAYOUT, key, COPIED, before)
    updates = 0
    for file in files["copy"]:
        updates += pc.sum(pq.read_table(file.uri, columns=[UPDATES])[UPDATES]).as_py()
    assert updates == count, (updates, count)
    with measured("feed", rows, temporary, table):
        feed = change_feed.write(
            *(steps, store, "t", 1), before=files["load"], after=files["copy"], layout=LAYOUT
        )
    assert feed.counts["update_before"] == feed.counts["update_after"] == count, feed.counts
    assert feed.counts["insert"] == feed.counts["delete"] == 0, feed.counts


@click.command()
@click.option("--rows", type=float, default=4e6, show_default=True)
@click.option("--changed", type=float, default=0.02, show_default=True, help="share of the rows")
@click.option("--spark", "master", help="run on Spark with this master; else in this process")
@click.option("--lot-mib", type=int, help="what a task may hold; else as the memory allows")
@click.option("--folder", type=click.Path(path_type=Path), help="for all files; else temporary")
def main(
    rows: float, changed: float, master: str | None, lot_mib: int | None, folder: Path | None
) -> None:
    """Measure a copy of `rows` rows, some of which changed."""
    if lot_mib is not None:
        step_places.TASK_BYTES_MIN = step_places.TASK_BYTES_MAX = lot_mib << 20
    with tempfile.TemporaryDirectory(dir=folder) as made:
        temporary = Path(made) / "temporary"
        temporary.mkdir()
        steps = Steps(NoSpark(), 1 << 50)
        with mock.patch("tempfile.tempdir", str(temporary)):
            if master is not None:
                settings = {"spark.master": master, "spark.local.dir": str(temporary)}
                session = DeferredSession(settings)
                session.get()
                steps = Steps(session, 0)
            run(Path(made), steps, int(rows), changed, temporary)


if __name__ == "__main__":
    main()

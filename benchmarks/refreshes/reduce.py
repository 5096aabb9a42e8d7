"""What it costs to add up the warehouse's side of a comparison: batches, threads, Spark's merge.

    python -m benchmarks.refreshes.reduce --rows 4e6
    python -m benchmarks.refreshes.reduce --rows 40e6 --files 64 --spark 'local[2]'

Files have keys and fingerprint lanes alone; the sketch is the finest, beside the most ranges. In
this process: wall and processor seconds per million rows, the least of several, interleaved. On
Spark, the sums of a task for each eight files, added up by the driver and by a second stage, and as
many tasks as are chosen: wall seconds, processor seconds of all processes, bytes that the driver
received and that went through a shuffle, its greatest memory in Arrow. All are checked to be the
same bits.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import product
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from driftline.limits import RANGES_MAX, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import uniform
from driftline.reconciliation.sketches import Embedding

from benchmarks.meter import cpu_s
from tests.harness.agents import SALT
from tests.harness.no_spark import NoSpark
from tests.harness.spark_stages import moved
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.spark.session import start
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks import digests, scan
from warehouse_agent.tasks.steps import Steps

LAYOUT = lay_out(recipe(["int8", "text"]), {}, where="t")
CUTS = uniform(RANGES_MAX)
GROUP_ROWS = 1 << 20


def fabricated(folder: Path, rows: int, files: int) -> list[DataFile]:
    """Write files of `rows` rows in all, with random lanes."""
    dice, made = np.random.default_rng(1), []
    for number in range(files):
        first, end = (rows * i // files for i in (number, number + 1))
        lanes = [dice.integers(-(2**62), 2**62, end - first) for _ in range(2)]
        table = pa.table([np.arange(first, end), *lanes], schema=LAYOUT.lane_schema)
        path = folder / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=GROUP_ROWS, compression="zstd")
        size = path.stat().st_size
        made.append(DataFile(path.name, f"file://{path}", size, end - first, (first, end - 1)))
    return made


def reduced(steps: Steps, files: list[DataFile], sketch: Sketch | None) -> digests.ComparisonSums:
    return digests.reduced(steps, files, LAYOUT, CUTS, SALT, sketch)


def in_this_process(files: list[DataFile], sketch: Sketch, repeat: int) -> None:
    """Time batches of several sizes in one thread and two."""
    million = sum(f.rows for f in files) / 1e6
    cases = list(product((None, sketch), (1, 2), (1 << 14, 1 << 16, 1 << 17)))
    least = dict.fromkeys(cases, (float("inf"), float("inf")))
    scan.THREAD_BYTES = 1
    for _, case in product(range(repeat), cases):
        of, scan.THREADS_MAX, scan.DIGEST_ROWS = case
        wall, processor = time.monotonic(), time.process_time()
        reduced(Steps(NoSpark(), 1 << 50), files, of)
        took = time.monotonic() - wall, time.process_time() - processor
        least[case] = min(least[case][0], took[0]), min(least[case][1], took[1])
    for (of, threads, rows), (wall, processor) in least.items():
        print(
            f"{'finest sketch' if of else 'ranges':13}  threads {threads}  batches {rows:7,}  "
            f"per M rows: wall {wall / million:.3f} s  processor {processor / million:.3f} s"
        )


def on_spark(files: list[DataFile], sketch: Sketch, master: str, repeat: int) -> None:
    """Time as many tasks, added up by the driver and by a second stage; and as chosen."""
    spark = start({"spark.master": master, "spark.driver.memory": "4g"})
    steps, received = Steps(spark), [0]
    module, results = vars(digests), set()
    scan_ = module["scan"]

    def counted(*args: object, **options: object) -> pa.Table:
        rows = scan_(*args, **options)
        received[0] = rows.nbytes
        return rows

    module["scan"] = counted
    at_once, many = module["processors"], -(-len(files) // 8)
    bounds = {
        "driver": (1 << 50, 4, lambda _: many),
        "second stage": (1, 1, lambda _: many),
        "as chosen": (128 << 20, 4, at_once),
    }
    for _, (name, (most, factor, asked)) in product(range(repeat), bounds.items()):
        digests.DRIVER_BYTES_MAX, digests.READ_FACTOR = most, factor
        module["processors"] = asked
        wall, processor, before = time.monotonic(), cpu_s([os.getpid()]), moved(spark)
        sums = reduced(steps, files, sketch)
        took = time.monotonic() - wall, cpu_s([os.getpid()]) - processor
        shuffled = moved(spark).shuffled - before.shuffled
        results.add((sums.ranges.to_bytes(), sums.cells.to_bytes(), sums.cells.check))
        print(
            f"{name:12}  wall {took[0]:6.2f} s  processor {took[1]:6.2f} s  received "
            f"{received[0] / 1e6:7.1f} MB  shuffled {shuffled / 1e6:7.1f} MB  peak of Arrow "
            f"{pa.default_memory_pool().max_memory():,}",
            flush=True,
        )
    module["processors"] = at_once
    assert len(results) == 1, "the results are the same bits"


@click.command()
@click.option("--rows", type=float, default=4e6)
@click.option("--files", type=int, default=8)
@click.option("--spark", "master", help="A master URL; without one all runs in this process.")
@click.option("--repeat", type=int, default=3)
def main(rows: float, files: int, master: str | None, repeat: int) -> None:
    print(f"{int(rows):,} rows, {files} files, {os.cpu_count()} processors")
    sketch = Sketch(Embedding(int(rows), 0), THIRD_CELLS_MAX)
    with tempfile.TemporaryDirectory() as folder:
        made = fabricated(Path(folder), int(rows), files)
        if master is None:
            in_this_process(made, sketch, repeat)
        else:
            on_spark(made, sketch, master, repeat)


if __name__ == "__main__":
    main()

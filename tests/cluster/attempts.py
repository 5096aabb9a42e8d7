"""A driver whose tasks write in several attempts each; it runs in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.held_daemon import HOLDS, Point, hold
from warehouse_agent.columns.view_layout import ViewColumn, ViewLayout, ViewRecipe
from warehouse_agent.spark import session
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.write import write_rows
from warehouse_agent.views.maintenance.pairing import write_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
NAME = "numbers"
LAYOUT = ViewLayout(
    (ViewColumn("n", "bigint"), ViewColumn("text", "string")),
    (ViewColumn("_driftline_k1", "bigint"),),
    ViewRecipe("SELECT n, text FROM numbers", (), {}, "4"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Files and rows of a step: those that it returned, and those that lie in its folder."""

    named: int
    rows: list[int]
    stored: int
    stored_rows: int


def written_twice(settings: dict[str, str], folder: Path) -> tuple[Outcome, Outcome]:
    """Write rows as data files, and then as a change feed, by two tasks each.

    If the settings have a folder of HOLDS, one task of each job stands still when its file is
    whole, until the job is over.
    """
    spark = session.start(settings)
    try:
        store = Store(str(folder))
        into = DataFolder(store, NAME, "data-x")
        rows = spark.range(0, ROWS, 1, 2).selectExpr(
            "id AS n", "repeat('x', int(id % 50)) AS text", "id AS _driftline_k1"
        )
        with standing(settings, "write"):
            files = write_rows(into, rows, LAYOUT)
        data = outcome(spark, [Path(f.uri.removeprefix("file://")) for f in files])
        with standing(settings, "change_feed"):
            feed = write_changes(spark, store, NAME, 1, LAYOUT, [], files)
        place = store.uri(PRIVATE, "changes", NAME, *str(feed.folder).split("/"))
        images = outcome(spark, [Path(place.removeprefix("file://")) / f for f in feed.files])
        assert feed.counts["insert"] == sum(feed.counts.values()) == ROWS
        return data, images
    finally:
        spark.stop()


@contextlib.contextmanager
def standing(settings: dict[str, str], module: str) -> Iterator[None]:
    """Let a task of a module stand still after it wrote, until the block is over."""
    if (name := settings.get(f"spark.executorEnv.{HOLDS}")) is None:
        yield
        return
    folder = Path(name)
    hold(folder, module, Point.WRITTEN)
    yield
    assert (folder / f"held.{module}.{Point.WRITTEN}").exists(), "no task stood still"
    for taken in folder.glob(f"{module}.{Point.WRITTEN}.*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(taken.suffix[1:]), signal.SIGKILL)
        taken.unlink()


def outcome(spark: SparkSession, named: list[Path]) -> Outcome:
    """Read the named files by a job of Spark, and count what lies beside them."""
    stored = [*named[0].parent.glob("*.parquet")]
    columns = pa.schema([("n", pa.int64())])
    files = [
        DataFile(f.name, f"file://{f}", f.stat().st_size, pq.read_metadata(f).num_rows)
        for f in named
    ]
    assert {*named} <= {*stored}
    found = rows_of(spark, files, columns).toArrow()["n"].to_pylist()
    counts = [pq.read_metadata(f).num_rows for f in stored]
    return Outcome(len(named), sorted(found), len(stored), sum(counts))

"""Every step of a refresh does the same in this process and on Spark: results and files."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline import frames
from driftline.digests import Salt, mix
from driftline.errors import ConfigurationError
from driftline.fingerprints import fingerprints
from driftline.ranges import uniform
from driftline.sketches import Embedding
from pyspark.sql import SparkSession

from tests.harness.no_spark import NoSpark
from tests.samples.rows import block, recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.planning.update_probability import Clock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks import change_feed, digests, proof, quantiles, staging
from warehouse_agent.tasks.rewrite import ByK, files_holding, rewrite
from warehouse_agent.tasks.row_statistics import Stamp
from warehouse_agent.tasks.steps import (
    DIGEST_BYTES,
    DIGESTS_FACTOR,
    StepLog,
    Steps,
    size_of_digests,
)
from warehouse_agent.tasks.write import Sink, written

KEY, SALT = bytes(range(32)), Salt(1, 2)
RECIPE = recipe(["int8", "text"])
LAYOUT = lay_out(RECIPE, {}, where="t")
ROWS, FILES = 300, 5  # rows of each file
FIRST = Stamp(0, 1e9, 86_400.0, Clock(), 1, 1.0)
SECOND = Stamp(1, 1e9 + 60, 60.0, Clock().after(0, 1e9), 1, 0.1)


def stage(folder: Path, name: str, rows: dict[int, str]) -> str:
    """Write a staged file of these rows, in frames of 100."""
    folder.mkdir(parents=True, exist_ok=True)
    out, keys = b"", sorted(rows)
    for at in range(0, len(keys), 100):
        some = keys[at : at + 100]
        data = block([[struct.pack(">q", key), rows[key].encode()] for key in some])
        digest = mix(SALT, *fingerprints(KEY, RECIPE)(data.rows())).digest()
        frame = frames.encode(data, RECIPE, SALT, digest, level=1)
        out += struct.pack("<I", len(frame)) + frame
    (folder / name).write_bytes(out)
    return f"file://{folder / name}"


def contents(files: list[DataFile]) -> list[dict[str, Any]]:
    """Return the rows of files by key; each file's count and bounds are those of its rows."""
    rows = []
    for file in files:
        some = pq.read_table(file.uri.removeprefix("file://")).to_pylist()
        keys = [row["c0"] for row in some]
        assert (file.rows, file.bounds) == (len(keys), (min(keys), max(keys)))
        rows += some
    return sorted(rows, key=lambda row: str(row["c0"]))


def run(steps: Steps, folder: Path) -> dict[str, Any]:
    """Load, compare, change and prove a table; return what each step found and wrote."""
    store = Store(str(folder))
    folder.mkdir()
    (folder / "key").write_bytes(KEY)
    key = KeyFile(f"file://{folder / 'key'}")
    spans = [range(i * 2 * ROWS, (i + 1) * 2 * ROWS, 2) for i in range(FILES)]
    loaded = [
        file
        for i, span in enumerate(spans)
        for file in staging.write_staged(
            steps,
            store,
            "t",
            f"load-{i}",
            [stage(folder / "staged", f"{i}.frames", {k: f"text {k % 7}" for k in span})],
            LAYOUT,
            key,
            FIRST,
        )
    ]
    changed = dict.fromkeys((4, 600, 602), "other") | dict.fromkeys((1, 2401), "new")
    gone = ByK(np.array([4, 8, 600, 602], np.uint64), Embedding(1 << 16, 0), SALT)
    hit = files_holding(steps, loaded, LAYOUT, gone)
    kept, before = rewrite(steps, store, "t", "kept", hit, LAYOUT, removal=gone)
    shipped = staging.write_staged(
        steps,
        store,
        "t",
        "shipped",
        [
            stage(folder / "staged", "new.frames", changed),
            stage(folder / "staged", "more.frames", {9999: "far"}),
        ],
        LAYOUT,
        key,
        SECOND,
        before=before,
        updated=3,
    )
    after = [*(f for f in loaded if f not in hit), *kept, *shipped]
    feed = change_feed.write(steps, store, "t", 1, before=before, after=shipped, layout=LAYOUT)
    assert feed.folder is not None
    place = folder / "_driftline" / "changes" / "t" / feed.folder
    images = [pq.read_table(place / name).to_pylist() for name in feed.files]
    cuts = uniform(64)
    sums = digests.reduced(steps, after, LAYOUT, cuts, SALT, Sketch(Embedding(1 << 16, 0), 40))
    chosen = np.arange(64) % 2 == 0
    ranges = digests.in_ranges(cuts, 0, chosen, None)
    listed = digests.list_rows(steps, after, LAYOUT, ranges, SALT)
    keys = partial(digests.below, embedding=Embedding(1 << 16, 0), salt=SALT, ks=gone.ks)
    below = digests.list_rows(steps, after, LAYOUT, keys, SALT)
    return {
        "loaded": contents(loaded),
        "hit": [loaded.index(f) for f in hit],
        "kept": contents(kept),
        "before": contents(before),
        "shipped": contents(shipped),
        "feed": (feed.counts, sorted(map(repr, (row for rows in images for row in rows)))),
        "sums": (sums.ranges.to_bytes(), sums.cells.to_bytes(), sums.cells.check),
        "listed": sorted(zip(listed.positions.tolist(), listed.hashes.tolist(), strict=True)),
        "below": sorted(zip(below.positions.tolist(), below.ranges.tolist(), strict=True)),
        "read back": proof.read_back(steps, after, LAYOUT, key, SALT, name="t"),
        "receipt": proof.values_digest(steps, after, LAYOUT, KEY, SALT),
        "quantiles": quantiles.samples_of(steps, after, LAYOUT).quantiles([0, 0.25, 0.5, 1]),
    }


def in_driver(small_bytes: int = 1 << 30) -> Steps:
    return Steps(NoSpark(), small_bytes)


def test_steps_in_this_process(tmp_path: Path) -> None:
    """The results are those that the rows demand, and no session was started."""
    found = run(in_driver(), tmp_path / "here")
    rows = {r["c0"]: r["c1"] for r in [*found["kept"], *found["shipped"]]}
    assert rows[600] == "other"
    assert 8 not in rows
    assert found["hit"] == [0, 1]
    assert [r["c0"] for r in found["before"]] == [4, 600, 602, 8]
    assert found["feed"][0] == {"insert": 3, "update_before": 3, "update_after": 3, "delete": 1}
    assert found["read back"].count == ROWS * FILES - 1 + 3
    assert found["quantiles"][0::3] == [0, 9999]
    assert {r["_driftline_updates"] for r in found["shipped"]} == {0, 1}


@pytest.mark.spark
def test_steps_on_spark_do_the_same(spark: SparkSession, tmp_path: Path) -> None:
    assert run(Steps(spark), tmp_path / "spark") == run(in_driver(), tmp_path / "here")


def test_the_place_follows_the_size(tmp_path: Path) -> None:
    log = StepLog(phases=["exchange", "list"])
    steps = Steps(NoSpark(), 1000, log)
    assert steps.runs_here(1000)
    assert not steps.runs_here(1001)
    assert log.places == {"list": "driver"}
    with pytest.raises(ConfigurationError) as caught:
        steps.spark(1001)
    why = "it has at least 1,001 bytes, and `small_bytes` is 1,000"
    assert caught.value.details == {"Spark is needed": f"for a step of `list`: {why}"}
    assert log.places == {"list": "spark"}
    assert steps.runs_here(1)
    assert log.places == {"list": "spark"}, "a phase is on Spark if any step of it is"
    assert not in_driver(0).runs_here(0), "0 leaves nothing to this process"
    pq.write_table(pa.table({"a": ["x" * 1000] * 50}), tmp_path / "f", use_dictionary=False)
    size = (tmp_path / "f").stat().st_size
    file = DataFile("f", f"file://{tmp_path}/f", size, 50)
    assert size < 20_000
    assert in_driver().size_of_rows([file]) >= 50_000
    assert in_driver(10).size_of_rows([file]) == size, "what is large is not opened"
    with Sink(f"file://{tmp_path}", "d", pa.schema([("a", pa.string())])) as sink:
        sink.add(pa.record_batch({"a": ["x" * 1000] * 500}))  # becomes a dictionary of one value
        (found,) = written(pa.Table.from_batches(sink.finish()), Store(str(tmp_path)), ".", ".")
    assert found.size < 20_000
    assert in_driver().size_of_rows([found]) >= 500_000, "as its writer noted"
    gone = DataFile("g", f"file://{tmp_path}/g", 7, 1)
    assert in_driver().size_of_rows([gone]) == 7
    assert size_of_digests([file]) == 50 * DIGEST_BYTES // DIGESTS_FACTOR

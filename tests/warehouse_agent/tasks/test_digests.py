"""Sums of tasks add up to those of all rows, however rows fall to files, row groups, batches and
tasks, in this process and on Spark, where the driver adds them and where Spark does."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import WarehouseUnavailable
from driftline.limits import RANGES_MAX, THIRD_CELLS_MAX
from driftline.reconciliation.ranges import RangeSums, uniform
from driftline.reconciliation.sketches import HASHES, PRIME, Cells, Embedding
from driftline.rows.digests import Digest, Salt, mix
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from tests.harness.no_spark import NoSpark
from tests.harness.spark_stages import moved
from tests.samples.rows import recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.planning.tiling import tiling
from warehouse_agent.refresh import auxiliary_table
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks import digests, scan
from warehouse_agent.tasks.digests import Adding, PartialSums, RowChoice
from warehouse_agent.tasks.steps import Steps

LAYOUT = lay_out(recipe(["int8", "text"]), {}, where="t")
SALT, CUTS = Salt(1, 2), uniform(64)
KEYS_MAX = 1 << 16
SKETCH = Sketch(Embedding(KEYS_MAX, 0), 60)
WORDS = st.integers(0, 2**64 - 1)
Rows = list[tuple[int, int, int]]  # position and lanes, as int64


@dataclass(frozen=True, slots=True)
class Case:
    """Rows, the file of each, and how large row groups and batches are, in rows."""

    rows: Rows
    files: list[int]
    group: int
    batch: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lane = st.integers(-(2**63), 2**63 - 1)
    rows = draw(st.lists(st.tuples(st.integers(0, KEYS_MAX - 1), lane, lane), max_size=60))
    files = draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    return Case(rows, files, draw(st.integers(1, 70)), draw(st.integers(1, 70)))


def put(folder: Path, rows: Sequence[tuple[int, int, int]], group: int) -> DataFile:
    """Write a data file of these rows that has their lanes alone."""
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    lanes = np.array(rows, np.int64).reshape(-1, 3).T
    table = pa.Table.from_arrays(list(map(pa.array, lanes)), schema=LAYOUT.lane_schema)
    pq.write_table(table, path, row_group_size=group, write_page_checksum=True)
    return DataFile(path.name, f"file://{path}", path.stat().st_size, len(rows))


def written(case: Case, folder: Path) -> list[DataFile]:
    files = ([r for r, at in zip(case.rows, case.files, strict=True) if at == f] for f in range(5))
    return [put(folder, rows, case.group) for rows in files if rows]


def at_once(rows: Rows) -> tuple[bytes, bytes, int]:
    """Add up all rows in one call."""
    where, hi, lo = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    mixed = mix(SALT, hi.view(np.uint64), lo.view(np.uint64))
    sums, cells = RangeSums(CUTS.ranges), Cells(SKETCH.third)
    sums.add(CUTS.indices(where), mixed)
    cells.add(SKETCH.embedding.embed(where, SALT)[0], mixed.m0, SALT)
    return sums.to_bytes(), cells.to_bytes(), cells.check


def reduced(steps: Steps, files: list[DataFile]) -> tuple[bytes, bytes, int]:
    found = digests.reduced(steps, files, LAYOUT, CUTS, SALT, SKETCH)
    return found.ranges.to_bytes(), found.cells.to_bytes(), found.cells.check


@contextlib.contextmanager
def merged_in_spark() -> Iterator[list[int]]:
    """Let Spark add up the sums of three tasks; yield the numbers of slices of each step."""
    counts, merged = [], digests._merged

    def noted(rows: DataFrame, *, slices: int) -> DataFrame:
        counts.append(slices)
        return merged(rows, slices=slices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "DRIVER_BYTES_MAX", 1)
        patch.setattr(digests, "DIGEST_BYTES", 1 << 20)
        patch.setattr(digests, "MERGE_BYTES", 1 << 10)
        patch.setattr(digests, "TASKS_MAX", 3)
        patch.setattr(digests, "processors", lambda _spark: 3)
        patch.setattr(digests, "_merged", noted)
        yield counts


@pytest.mark.slow
@given(cases(), st.integers(1, 4))
@settings(max_examples=40)
def test_in_this_process_it_does_not_matter_how_rows_fall(case: Case, threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "DIGEST_ROWS", case.batch)
        patch.setattr(scan, "THREADS_MAX", threads)
        patch.setattr(scan, "THREAD_BYTES", 1)
        files = written(case, Path(folder))
        steps = Steps(NoSpark(), 1 << 30)
        assert reduced(steps, files) == at_once(case.rows)
        place = digests.in_ranges(CUTS, 0, np.ones(CUTS.ranges, np.bool_), None)
        listed = digests.list_rows(steps, files, LAYOUT, RowChoice(place), SALT)
        paths = [files[at].path for at in listed.file]
        assert paths == sorted(paths), "rows come file by file"
        assert sorted(listed.positions.tolist()) == sorted(row[0] for row in case.rows)


@pytest.mark.spark
@pytest.mark.slow
@given(cases())
@settings(max_examples=5)
def test_on_spark_it_does_not_matter_either(spark: SparkSession, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert reduced(Steps(spark), written(case, Path(folder))) == at_once(case.rows)


@pytest.mark.spark
@pytest.mark.slow
@given(cases())
@settings(max_examples=5)
def test_nor_does_it_where_spark_adds(spark: SparkSession, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder, merged_in_spark() as counts:
        files = written(case, Path(folder))
        assert reduced(Steps(spark), files) == at_once(case.rows)
        assert counts == ([8] if files else []), "slices of 1 KiB, of 3 tasks with 2,468 bytes each"


@pytest.mark.spark
def test_the_sums_of_a_pass_are_added_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(3)
    rows = [(k, dice.getrandbits(63), -dice.getrandbits(63)) for k in range(500)]
    files = [put(tmp_path, rows[at::7], 20) for at in range(7)]
    cut = tiling([0, 100, 200, 300, 499], 500)
    adder = auxiliary_table._sums(cut, SALT)
    words = 2 * (cut.cuts.ranges + len(cut))
    with merged_in_spark() as counts:
        here, there = (
            digests.added(steps, files, LAYOUT, Adding(adder, words))
            for steps in (Steps(NoSpark(), 1 << 30), Steps(spark))
        )
    assert len(counts) == 1
    assert here.total == there.total
    assert np.array_equal(here.words, there.words)
    assert len(there.elements) == 0


@pytest.mark.spark
def test_an_error_of_a_task_comes_through_the_second_stage(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = put(tmp_path, [(1, 2, 3)], 10)
    (tmp_path / file.path).write_bytes(b"no Parquet")
    with merged_in_spark() as counts, pytest.raises(WarehouseUnavailable, match=file.path):
        reduced(Steps(spark), [file])
    assert counts


@pytest.mark.spark
def test_each_processor_sends_its_sums_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark moves is bounded by its processors, of which it has two, not by the table."""
    monkeypatch.setattr(digests, "DIGEST_BYTES", 1 << 24)  # as of a table of hundreds of millions
    rows = [(k, k**5, -(k**6)) for k in range(80)]
    files = [put(tmp_path, rows[at::8], 20) for at in range(8)]
    finest, most = Sketch(Embedding(KEYS_MAX, 0), THIRD_CELLS_MAX), uniform(RANGES_MAX)
    before = moved(spark)
    found = digests.reduced(Steps(spark), files, LAYOUT, most, SALT, finest)
    after, size = moved(spark), 16 * RANGES_MAX + 4 * (2 * HASHES * THIRD_CELLS_MAX + 1)
    assert after.shuffled == before.shuffled
    assert after.results - before.results < 2.1 * size
    here = digests.reduced(Steps(NoSpark(), 1 << 30), files, LAYOUT, most, SALT, finest)
    assert found.ranges.to_bytes() == here.ranges.to_bytes()
    assert (found.cells.to_bytes(), found.cells.check) == (here.cells.to_bytes(), here.cells.check)


@given(
    st.lists(st.tuples(WORDS, WORDS, st.integers(0, PRIME - 1)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_slices_of_sums_add_up_in_any_order(
    parts: list[tuple[int, int, int]], count: int, source: random.Random
) -> None:
    """Against Python's integers; slices travel through a second stage or come to the driver."""
    sums = [
        PartialSums(Digest(1, a << 64 | b), np.array([a, b], np.uint64), np.array([c], np.uint64))
        for a, b, c in parts
    ]
    slices = [batch for one in sums for batch in one.slices(count)]
    source.shuffle(slices)
    cut = source.randrange(len(slices) + 1)
    stages = [[*digests._merge(some)] for some in (slices[:cut], slices[cut:])]
    source.shuffle(stages)
    found = digests._summed(batch for some in stages for batch in some)
    assert sorted(found) == list(range(count))
    total = sum((found[at].total for at in range(count)), Digest())
    assert (total.count, total.sum) == (len(parts), sum(a << 64 | b for a, b, _ in parts) % 2**128)
    words = np.concatenate([found[at].words for at in range(count)])
    assert words.tolist() == [sum(p[i] for p in parts) % 2**64 for i in (0, 1)]
    elements = np.concatenate([found[at].elements for at in range(count)])
    assert (elements % np.uint64(PRIME)).tolist() == [sum(p[2] for p in parts) % PRIME]


def unread(_: object) -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize(
    ("rows", "cells", "at_once", "tasks", "slices"),
    [
        (1 << 30, 0, None, 64, 1),  # small sums: the driver adds them up, whatever the rows
        (1 << 20, 720_720, None, 6, 1),
        (20 << 20, 720_720, None, 6, 1),
        (40 << 20, 720_720, None, 11, 8),
        (1 << 30, 720_720, None, 64, 41),
        (1 << 30, 0, 2, 64, 1),
        (1 << 20, 720_720, 2, 2, 1),
        (1 << 20, 72_072, 2, 2, 1),  # six million bytes each
        (1 << 20, 7_207, 2, 3, 1),
        (40 << 20, 720_720, 2, 2, 1),
        (40 << 20, 720_720, 64, 11, 8),
        (1 << 30, 720_720, 1, 1, 1),
        (1 << 30, 720_720, 12, 12, 8),
    ],
)
def test_spark_adds_up_what_is_large(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    cells: int,
    at_once: int | None,
    tasks: int,
    slices: int,
) -> None:
    """`at_once` tasks run at once; None: it is not known how many."""
    asked = []
    monkeypatch.setattr(digests, "processors", lambda _spark: at_once)

    def noted(*given: Any, **options: Any) -> pa.Table:
        merge = given[3].merge
        asked.append((options["tasks_max"], merge.keywords["slices"] if merge else 1))
        return digests._SLICES.empty_table()

    monkeypatch.setattr(digests, "scan", noted)
    ranges = 1 << 18 if cells else 1
    file = DataFile("f", "file:///f", 1, rows)
    any_session: Any = object()
    found = digests.added(
        Steps(any_session), [file], LAYOUT, Adding(unread, 2 * ranges, 6 * cells + 1)
    )
    assert asked == [(tasks, slices)]
    assert (found.total, len(found.words)) == (Digest(), 2 * ranges)

"""Rows looked up in lots: statistics of staged rows, and change feeds, against a dict of rows."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.arrays import Positions
from driftline.rows.columns import Block
from driftline.rows.keys import positions as exact_positions
from driftline.values.types import Recipe
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import staged as harness
from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, contents, stage
from tests.reference.rows import Row
from tests.samples.rows import recipe
from warehouse_agent.columns import layout as layouts
from warehouse_agent.columns.layout import CHANGED, FIRST, RATE, STATISTICS, UPDATES, lay_out
from warehouse_agent.planning import step_places
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.planning.update_probability import BIRTH, TAU_S, VersionClock
from warehouse_agent.spark.executors import KeyFile
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.tasks import change_feed, scan, staged_rows
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_rows import RowsBefore, write_staged
from warehouse_agent.tasks.steps import STEP_THREADS, Steps

KINDS: dict[str, tuple[Recipe, Callable[[int, str], Row]]] = {
    "integer": (
        recipe(["int4", "text"]),
        lambda key, text: [struct.pack(">i", key), text.encode()],
    ),
    "composite": (
        recipe(["text", "int2", "text"], 2),
        lambda key, text: [f"ä{key}".encode(), struct.pack(">h", key % 7), text.encode()],
    ),
}
FIRST_STAMP = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
NOW = 3
CLOCK = VersionClock((0, 1, 2), (1e9, 1e9 + 100_000, 1e9 + 300_000))
STAMP = StatisticsStamp(NOW, 1e9 + 500_000, 60.0, CLOCK, 1, 0.1)
ROWS = 700  # 0 to 599 are published; every third comes again, every sixth of them changed

# First version, updates, last changed version, rate.
Statistics = tuple[int | None, int | None, int | None, float | None]
NONE: Statistics = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a folder, whose steps run in this process."""

    folder: Path
    kind: str
    steps: Steps
    has_own_positions: bool = True  # no two keys have one

    @classmethod
    @contextmanager
    def made(cls, kind: str, lot_bytes: int) -> Iterator[Table]:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_places, "TASK_BYTES_MIN", lot_bytes)
            patch.setattr(step_places, "TASK_BYTES_MAX", lot_bytes)
            patch.setattr(staged_rows, "AT_ONCE_ROWS", 0)
            patch.setattr(scan, "DIGEST_ROWS", 7)
            patch.setattr(scan, "BATCH_ROWS", 5)
            patch.setattr(harness, "FRAME_ROWS", 3)
            made = cls(Path(folder), kind, Steps(NoSpark(), small_bytes=1 << 30))
            made.store.write(KEY, PRIVATE, "keys", "t.key", private=True)
            yield made

    @property
    def store(self) -> Store:
        return Store(str(self.folder))

    @property
    def layout(self) -> layouts.Layout:
        return lay_out(KINDS[self.kind][0], {}, where="t")

    def stage(self, name: str, rows: Sequence[tuple[int, str]]) -> str:
        made, row_of = KINDS[self.kind]
        return stage(self.folder / "staged", name, [row_of(*row) for row in rows], made)

    def written(
        self, part: str, uris: list[str], before: Sequence[DataFile] = (), updated: int | None = 0
    ) -> list[DataFile]:
        place, key = DataFolder(self.store, "t", part), KeyFile(self._key)
        stamp = STAMP if before else FIRST_STAMP
        rows = RowsBefore(before, updated)
        return write_staged(self.steps, place, uris, self.layout, key, stamp, rows)

    def published(self, rows: Sequence[tuple[int, str, Statistics | None]]) -> list[DataFile]:
        """Write rows with these statistics; a file whose first row has none has no such columns."""
        found = []
        for at in range(0, len(rows), 8):
            some = rows[at : at + 8]
            staged = self.stage(f"old-{at}", [row[:2] for row in some])
            (file,) = self.written(f"old-{at}", [staged])
            path = file.uri.removeprefix("file://")
            table = pq.read_table(path, partitioning=None)
            names = [name for name, _ in STATISTICS]
            table = table.drop_columns(names)
            if some[0][2] is not None:
                columns = zip(*(row[2] or NONE for row in some), strict=True)
                for (name, kind), values in zip(STATISTICS, columns, strict=True):
                    table = table.append_column(name, pa.array(values, kind))
            pq.write_table(table, path)
            found.append(replace(file, size=Path(path).stat().st_size))
        return found

    def statistics(self, files: list[DataFile]) -> Counter[tuple[Any, ...]]:
        """Return key, value and statistics of each row, as in their files."""
        return Counter(
            (*self.key_and_value(row), row[FIRST], row[UPDATES], row[CHANGED], row[RATE])
            for row in contents(files, self.layout)
        )

    def key_and_value(self, row: dict[str, Any]) -> tuple[Any, ...]:
        first, *_, last = (row[name] for name in self.layout.names)
        return first if self.kind == "integer" else int(first[1:]), last

    def feed(self, before: list[DataFile], after: list[DataFile]) -> Counter[tuple[Any, ...]]:
        """Return operation, key and value of each image."""
        feed = change_feed.write(
            self.steps, self.store, "t", NOW, before=before, after=after, layout=self.layout
        )
        folder = self.folder / PRIVATE / "changes" / "t" / str(feed.folder)
        tables = [pq.read_table(folder / file, partitioning=None) for file in feed.files]
        rows = [row for table in tables for row in table.to_pylist()]
        assert feed.counts == {
            op: sum(row["_op"] == op for row in rows) for op in change_feed.OPERATIONS
        }
        assert feed.places is not None
        updated = feed.counts["update_after"]
        if self.has_own_positions:
            assert feed.places.compared == updated
            assert [*feed.places.columns.values()] == [updated] * bool(updated)
        return Counter((row["_op"], *self.key_and_value(row)) for row in rows)

    @property
    def _key(self) -> str:
        return self.store.uri(PRIVATE, "keys", "t.key")


KEYS = st.integers(-6, 40)
TEXTS = st.sampled_from(["a", "b"])
STATED = st.none() | st.tuples(
    st.none() | st.integers(0, 2),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, NOW),
    st.none() | st.floats(0, 9, width=32),
)
OLD = st.dictionaries(KEYS, st.tuples(TEXTS, STATED), max_size=30)
STAGED = st.lists(st.tuples(KEYS, TEXTS), max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@given(
    OLD,
    STAGED,
    st.booleans(),
    st.sampled_from([1, 1000, 2500, 1 << 20]),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_lots_find_the_rows_of_their_keys(
    kind: str,
    old: dict[int, tuple[str, Statistics | None]],
    staged: list[tuple[int, str]],
    has_all: bool,
    lot_bytes: int,
    positions: int | None,
    is_split: bool,
) -> None:
    """Whatever the lots, the files and the positions: few of them are shared by many keys."""
    if has_all:  # every old row comes again
        staged = [*staged, *((key, text) for key, (text, _) in old.items())]
    with Table.made(kind, lot_bytes) as table, pytest.MonkeyPatch.context() as patch:
        if positions is not None and kind == "composite":
            patch.setattr(layouts, "positions", shared(positions))
        if is_split:
            patch.setattr(staged_rows, "FILE_BYTES", 1)
            patch.setattr(change_feed, "FILE_BYTES", 1)
        before = table.published([(key, *values) for key, values in old.items()])
        halves = [staged[: len(staged) // 2], staged[len(staged) // 2 :]]
        uris = [table.stage(f"new-{i}", rows) for i, rows in enumerate(halves) if rows]
        files = table.written("new", uris, before, None)
        expected = Counter(row for key, text in staged for row in [carried(key, text, old)])
        if before:
            assert near(table.statistics(files), expected)
        if len(dict(staged)) == len(staged):
            has_own = positions is None or kind == "integer"
            fed = replace(table, has_own_positions=has_own).feed(before, files)
            assert fed == changes(old, dict(staged))


def shared(positions: int) -> Callable[[Block, Recipe, int], Positions]:
    """Return the function that gives all keys one of so many positions."""

    def coarse(block: Block, recipe: Recipe, seed: int) -> Positions:
        return exact_positions(block, recipe, seed) % positions

    return coarse


def carried(
    key: int, text: str, old: dict[int, tuple[str, Statistics | None]]
) -> tuple[int, str, int | None, int | None, int | None, float | None]:
    """The four rules of `row_statistics`, for a row by itself."""
    if key not in old:
        return key, text, NOW, 0, NOW, BIRTH
    known, stated = old[key]
    first_row = list(old).index(key) // 8 * 8
    if list(old.values())[first_row][1] is None:  # its file has no statistics
        stated = None
    first, updates, changed, rate = stated or NONE
    if known == text or changed == NOW:
        return key, text, first, updates, changed, rate
    at = CLOCK.seconds[changed or 0]
    left = (rate or 0) * math.exp(-(STAMP.at_s - at) / TAU_S)
    return key, text, first, (updates or 0) + 1, NOW, 1.0 + left


def near(found: Counter[tuple[Any, ...]], expected: Counter[tuple[Any, ...]]) -> bool:
    """Compare rows; rates are of 32 bits."""

    def rounded(rows: Counter[tuple[Any, ...]]) -> list[str]:
        return sorted(repr((*row[:5], row[5] and f"{row[5]:.4g}")) for row in rows.elements())

    assert rounded(found) == rounded(expected)
    return True


def changes(
    old: dict[int, tuple[str, Statistics | None]], new: dict[int, str]
) -> Counter[tuple[Any, ...]]:
    """Return the images between two tables."""
    found: Counter[tuple[Any, ...]] = Counter()
    for key in {*old, *new}:
        before, after = old[key][0] if key in old else None, new.get(key)
        if before == after:
            continue
        if before is not None:
            found["delete" if after is None else "update_before", key, before] += 1
        if after is not None:
            found["insert" if before is None else "update_after", key, after] += 1
    return found


@pytest.mark.parametrize("lot_bytes", [1, 64 << 10, 1 << 30])
@pytest.mark.parametrize("kind", KINDS)
def test_lots_find_what_one_lookup_finds(kind: str, lot_bytes: int) -> None:
    with Table.made(kind, lot_bytes) as table:
        loaded = [
            table.stage(f"load-{at}", [(i, str(i)) for i in range(at, at + 200)])
            for at in (0, 200, 400)
        ]
        published = table.written("load", loaded)
        came = [
            table.stage(f"came-{at}", [(i, _changed(i)) for i in range(at, ROWS, 9)])
            for at in (0, 3, 6)
        ]
        in_lots = contents(table.written("in-lots", came, published, 100), table.layout)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staged_rows, "AT_ONCE_ROWS", ROWS)
            at_once = contents(table.written("at-once", came, published, 100), table.layout)
    assert in_lots == at_once
    assert counted(in_lots) == {
        (0, 0, 0): 100,  # came as they were
        (0, 1, NOW): 100,
        (NOW, 0, NOW): 34,
    }


def test_lots_are_as_large_as_memory_allows() -> None:
    """All threads together hold the driver's share; an executor's memory is not known."""
    work, most, least = StepWork(StepKind.WRITE, 1), 1 << 30, 64 << 20
    assert step_places.task_bytes(None, 8) == 256 << 20
    assert step_places.task_bytes(1 << 40, 8) == most
    assert step_places.task_bytes(1 << 20, 8) == least
    assert step_places.task_bytes(1 << 30, 4) == 256 << 20
    here = Steps(NoSpark(), small_bytes=1)
    assert here.task_bytes(work) == step_places.task_bytes(here.memory, STEP_THREADS)
    on_spark = Steps(DeferredSession({"spark.master": "local[3]"}), small_bytes=0)
    assert on_spark.task_bytes(work) == step_places.task_bytes(here.memory, 3)
    cluster = Steps(DeferredSession({"spark.master": "spark://nowhere:7077"}), small_bytes=0)
    assert cluster.task_bytes(work) == 256 << 20


def _changed(key: int) -> str:
    return f"{key} again" if key % 6 == 0 else str(key)


def counted(rows: list[dict[str, Any]]) -> dict[tuple[int, ...], int]:
    return dict(Counter(tuple(row[name] for name in (FIRST, UPDATES, CHANGED)) for row in rows))

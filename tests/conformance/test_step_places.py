"""Every step of a refresh does the same in this process and on Spark: results and files.

`run` takes tables of every type through all steps. `test_every_step_is_run` finds the steps in the
source, so that a new one cannot be left out.
"""

from __future__ import annotations

import ast
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.arrays import Integers
from driftline.errors import ConfigurationError, DuplicateKey
from driftline.reconciliation.ranges import uniform
from driftline.reconciliation.sketches import Embedding
from driftline.rows.fingerprints import position_seed
from driftline.rows.keys import positions
from driftline.values.types import Column, Recipe, parse_type
from pyspark.sql import SparkSession

from tests import ROOT
from tests.harness.no_spark import NoSpark
from tests.harness.staged import KEY, SALT, contents, frames_of, stage
from tests.reference import values as reference
from tests.reference.rows import Row
from tests.samples.exchanges import ORDERS
from tests.samples.rows import block, recipe
from tests.samples.values import CHOSEN, TYPES
from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.columns.layout import Layout, lay_out
from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.notes import Notes
from warehouse_agent.methods import key_sums, registry
from warehouse_agent.methods.groups import assignment, key_parts, shards
from warehouse_agent.methods.groups.assignment import PartRows, RowsInPositions
from warehouse_agent.methods.groups.exchange import NamedPiece
from warehouse_agent.methods.groups.shards import ShardScope
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.planning import step_places
from warehouse_agent.planning.group_selection import grouping, most_likely
from warehouse_agent.planning.sketch_size import Sketch
from warehouse_agent.planning.step_places import StepKind, StepPlace, StepWork, written
from warehouse_agent.planning.tiling import Tiling, key_tiling, tiling
from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.refresh import auxiliary_table
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.recovery import leftovers
from warehouse_agent.report import Report
from warehouse_agent.spark.machine import machine
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot, VersionRecord
from warehouse_agent.tasks import (
    change_feed,
    digests,
    file_damage,
    proof,
    quantiles,
    scan,
    staged_rows,
)
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.difference import EmptiedZones
from warehouse_agent.tasks.processes import PROCESSES, ReadingProcesses
from warehouse_agent.tasks.rewrites import replaced_rows
from warehouse_agent.tasks.rewrites.replaced_rows import (
    RowsByHash,
    RowsInTiles,
    files_holding,
    rewrite,
    rewrite_without,
)
from warehouse_agent.tasks.rewrites.restatement import restate
from warehouse_agent.tasks.row_statistics import StatisticsStamp
from warehouse_agent.tasks.staged_chunks import take_up
from warehouse_agent.tasks.staged_rows import RowsBefore, StagedFrames
from warehouse_agent.tasks.steps import (
    DIGEST_BYTES,
    DIGESTS_FACTOR,
    STEP_THREADS,
    StepLog,
    Steps,
    work_of_digests,
)

ROWS, FILES = 60, 3  # rows of each file
FIRST = StatisticsStamp(0, 1e9, 86_400.0, VersionClock(), 1, 1.0)
SECOND = StatisticsStamp(1, 1e9 + 60, 60.0, VersionClock().after(0, 1e9), 1, 0.1)
LONG = 100_000  # bytes of the longest value
ENDS = {
    "date": ["0001-01-01", "9999-12-31"],
    "timestamp": ["0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"],
    "timestamptz": ["0001-01-01 00:00:00.000001+00", "9999-12-31 23:59:59.999999+00"],
}


@dataclass(frozen=True, slots=True)
class Table:
    """A layout and its rows by number; `edition` differs in every value that may differ."""

    layout: Layout
    row: Callable[[int, int], Row]
    rows: int = ROWS * FILES

    @property
    def recipe(self) -> Recipe:
        return self.layout.recipe


def is_carried(type: str, text: str) -> bool:
    """Return True if the native carrier holds a value: no NaN in a decimal, years 1 to 9999."""
    if type in ENDS:
        return text[0].isdigit() and text[4] == "-" and text[:4] != "0000"
    return not (type.startswith("numeric(") and text == "NaN")


def samples(type: str, *, is_native: bool) -> list[bytes | None]:
    """Every chosen value that the carrier holds, a long one where lengths vary, and NULL."""
    texts = [*CHOSEN[type], *ENDS.get(type, [])]
    if is_native:
        texts = [text for text in texts if is_carried(type, text)]
    found: list[bytes | None] = [None, *(reference.encode(type, text) for text in texts)]
    if type in {"text", "bytea"}:
        found.append(b"x" * LONG)
    return found


def table(key: Sequence[str], carrier: Carrier, key_of: Callable[[int], Row]) -> Table:
    """Make a table with a column of every type behind its key."""
    made = recipe([*key, *TYPES], len(key))
    carriers = {column.name: carrier for column in made.columns[len(key) :]}
    layout = lay_out(made, carriers, where="t")
    columns = [samples(type, is_native=carrier is Carrier.NATIVE) for type in TYPES]

    def row(number: int, edition: int) -> Row:
        at = number + edition
        return [*key_of(number), *(some[at % len(some)] for some in columns)]

    return Table(layout, row)


def composite(number: int) -> Row:
    """A text, a negative or positive number and bytes; no two keys are alike."""
    return [f"ä{number // 7}".encode(), struct.pack(">h", number % 7 - 3), b"\0" * (number % 3)]


TABLES = {
    "integer key": table(["int4"], Carrier.NATIVE, lambda n: [struct.pack(">i", 2 * n - 50)]),
    "composite key": table(["text", "int2", "bytea"], Carrier.STRING, composite),
}
TABLES["no rows"] = replace(TABLES["integer key"], rows=0)


def job_in(folder: Path, steps: Steps) -> Job:
    store = Store(str(folder))
    store.write(KEY, PRIVATE, "keys", "t.key", private=True)
    fragment = Fragment("t", Source("erp", "127.0.0.1:1"), "t")
    return Job(steps, store, fragment, Options(), Report("t"), Notes())


def empty_file(folder: Path, layout: Layout) -> DataFile:
    """Write a data file without rows."""
    place = folder / "t" / "data" / "empty.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(layout.file_schema.empty_table(), place)
    return DataFile("data/empty.parquet", f"file://{place}", place.stat().st_size, 0)


def run(steps: Steps, folder: Path, made: Table) -> dict[str, Any]:
    """Load, change, compare and prove a table; return what each step found and wrote."""
    job, layout = job_in(folder, steps), made.layout
    place, staged = (steps, job.store, "t"), folder / "staged"
    loaded = [
        file
        for i, first in enumerate(range(0, made.rows, ROWS))
        for file in job.write_staged(
            f"load-{i}",
            [stage(staged, f"{i}.frames", rows_of(made, range(first, first + ROWS)), made.recipe)],
            layout,
            FIRST,
        )
    ]
    old = [*loaded, empty_file(folder, layout)]
    updated, deleted, added = (4, 7, 8, 9), (5, 6), (made.rows + 1, made.rows + 2)
    changed = rows_of(made, [n for n in updated if n < made.rows] + [*added], edition=1)
    where = np.sort(positions_of(made, [*updated, *deleted])).tolist()
    zones = EmptiedZones.of([(at, at) for at in where], len(where))
    gone = RowsInTiles(zones, RowsByHash.of(digests.Listing.joined(()), SALT))
    hit = files_holding(steps, old, layout, gone)
    kept, before = rewrite(steps, job.folder("kept"), hit, layout, removal=gone)
    uris = [stage(staged, "new.frames", changed, made.recipe)]
    shipped = job.write_staged("shipped", uris, layout, SECOND, before, 4)
    after = [*(f for f in old if f not in hit), *kept, *shipped]
    feed = change_feed.write(*place, 1, before=before, after=shipped, layout=layout)
    files = ([f for f in one if f not in other] for one, other in ((old, after), (after, old)))
    gone_files, new_files = files
    feed_of_files = change_feed.write(*place, 2, before=gone_files, after=new_files, layout=layout)
    writer = job.staging.begin(ORDERS)
    for frame in frames_of(changed, made.recipe):
        writer.add(frame)
    writer.flush()
    merged = leftovers.merge(job, old, layout, [writer.folder], SECOND)
    return {
        "loaded": contents(loaded, layout),
        "hit": [old.index(f) for f in hit],
        "kept": contents(kept, layout),
        "before": contents(before, layout),
        "shipped": contents(shipped, layout),
        "feed": images(folder, feed),
        "feed of files": images(folder, feed_of_files),
        "merged": contents(merged, layout),
        **compared(steps, after, made),
        **in_units(steps, after, layout),
        **by_keys(steps, after, made),
        **proven(steps, folder, after, made),
        **restated(steps, job, after, made),
        **taken_up(steps, job, staged, made, after),
    }


def taken_up(
    steps: Steps, job: Job, staged: Path, made: Table, published: list[DataFile]
) -> dict[str, Any]:
    """Take up a load that was cut, and a copy; a source met each second chunk.

    No file of frames follows another, so it does not matter which a task of Spark has.
    """
    rows = rows_of(made, range(made.rows))
    uris = [
        stage(staged, f"{2 * i + 1:06d}.frames", rows[i * ROWS : (i + 1) * ROWS], made.recipe)
        for i in range(FILES)
        if rows
    ]
    if not uris:
        return {}
    frames = StagedFrames(
        uris, sum((staged / uri.rsplit("/", 1)[1]).stat().st_size for uri in uris)
    )
    layout, key = made.layout, job.key_file
    chunks = take_up(steps, job.folder("taken"), frames, layout, key, FIRST, SALT)
    taken = contents(chunks.files, layout)
    gone = chunks.unmet(np.arange(len(chunks.listed)) % 2 == 0)
    left = rewrite_without(steps, job.folder("left"), chunks.files, layout, gone)
    replacing = replace(frames, before=RowsBefore(published, 4))
    copied = take_up(steps, job.folder("copied"), replacing, layout, key, SECOND, SALT)
    assert copied.listed.tolist() == chunks.listed.tolist()
    return {
        "taken": taken,
        "chunks": chunks.listed.tolist(),
        "left": contents(left, layout),
        "copied": contents(copied.files, layout),
    }


def compared(steps: Steps, files: list[DataFile], made: Table) -> dict[str, Any]:
    """What the steps of comparisons find in files."""
    cuts, layout, embedding = uniform(64), made.layout, Embedding(1 << 16)
    sums = digests.reduced(steps, files, layout, cuts, SALT, Sketch(embedding, 40))
    ranges = digests.in_ranges(cuts, 0, np.arange(64) % 2 == 0, None)
    some = positions_of(made, range(0, 9, 2))
    ks = np.unique(embedding.embed(some, SALT)[0])
    keys = partial(digests.below, embedding=embedding, salt=SALT, ks=ks)
    record = VersionRecord(
        as_of="", checked_at="", published_at="", consistency="exact", proof="total", rows=0
    )
    base = Snapshot(0, "t", tuple(files), layout, record, None)
    tiles: Tiling = tiling([-(1 << 62), -9, 30, 1 << 62], 20)
    keys_found: list[Any] = []
    if not made.recipe.integer_key:
        sample = quantiles.sample_keys(steps, files, layout, 1)
        keys_found = [sorted(sample.keys), sorted(sample.ends.values())]
        tiles = key_tiling(made.recipe, sample.keys, len(sample.keys), 5, sample.ends)
        inside = digests.RowsInKeyTiles.between(made.recipe, *tiles.keys_around(1))
        chosen = digests.RowChoice(np.zeros_like, inside)
        rows = digests.list_rows(steps, files, layout, chosen, SALT)
        keys_found.append(listed(rows))
    return {
        "keys": keys_found,
        "sums": (sums.ranges.to_bytes(), sums.cells.to_bytes(), sums.cells.check),
        "total": digests.total(steps, files, layout, SALT),
        "listed": listed(digests.list_rows(steps, files, layout, digests.RowChoice(ranges), SALT)),
        "below": listed(digests.list_rows(steps, files, layout, digests.RowChoice(keys), SALT)),
        "tiles": auxiliary_table._reduced(steps, base, tiles, SALT).to_bytes(),
        "quantiles": quantiles.samples_of(steps, files, layout).quantiles([0, 0.25, 0.5, 1]),
    }


def listed(found: digests.Listing) -> list[tuple[int, ...]]:
    columns = (found.ranges, found.positions, found.hashes, found.file)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def in_units(steps: Steps, files: list[DataFile], layout: Layout) -> dict[str, Any]:
    """What the group method's steps make of files."""
    place, view = (steps, files, layout), SECOND.view
    counted = assignment.histogram(*place, view)
    plan = grouping(counted, row_bytes=100.0, key_bytes=2.0, wait_bytes=0.0)
    part = PartRows(most_likely(counted, 20), RowsInPositions(-9, 30))
    end = assignment.window_end(*place, 0, 17)
    found: dict[str, Any] = {"histogram": (counted.counts.tolist(), counted.updates.tolist(), end)}
    for name, chosen in (("units", None), ("part", part)):
        rows = assignment.assign(
            *place, view, assignment.AssignmentRule(plan, Embedding(1 << 16), SALT, chosen)
        )
        pieces = sorted((piece.size, piece.ks, piece.digests) for piece in rows.pieces)
        found[name] = (pieces, rows.ungrouped.tolist(), rows.compared, rows.rest)
    return found


def by_keys(steps: Steps, files: list[DataFile], made: Table) -> dict[str, Any]:
    """What the steps of comparisons by keys find in files: of a marker, and of named keys."""
    copy = WorkingCopy(
        steps, "t", made.layout, tuple(files), SALT, lambda _: nullcontext(), SECOND.view
    )
    embedding = Embedding(1 << 16)
    sums = key_sums.reduced(copy, uniform(64), Sketch(embedding, 40), hashes=True)
    some = np.sort(positions_of(made, range(0, 9, 2)))
    ks = np.unique(embedding.embed(positions_of(made, range(1, 9, 2)), SALT)[0])
    gone = key_sums.replaced(copy, some, embedding, ks)
    found: dict[str, Any] = {
        "sums of keys": (sums.ranges.to_bytes(), sums.cells.to_bytes(), sums.keys, sums.hashes),
        "replaced": (listed(gone.rows), gone.digest, gone.keys),
    }
    counted = assignment.histogram(steps, files, made.layout, SECOND.view)
    likely = registry.likelihoods(steps, files, made.layout, SECOND.view)
    assert likely is None or likely.counts.tolist() == counted.counts.tolist()
    plan = grouping(counted, row_bytes=100.0, key_bytes=2.0, wait_bytes=0.0)
    window = key_parts.window_of(copy, 17)
    part = PartRows(most_likely(counted, 20), window.inside)
    side = key_parts.reduce(copy, plan, part, window, (100, 0), rows_max=ROWS * FILES)
    named = [piece for piece in side.grouped.pieces if isinstance(piece, NamedPiece)]
    where = np.concatenate([piece.positions for piece in named])
    found["window"] = (window.ranges, window.following)
    found["named"] = (sorted(where.tolist()), side.compared, side.rest, side.updates_left)
    # Samples differ from place to place, and so do the bounds of shards.
    divided = shards.reduce(copy, plan, ShardScope(part, window), (100, 0), keys_max=40)
    rows = [shard.rows for shard in divided.shards.each]
    assert 1 <= min(rows) <= max(rows) <= 40
    found["shards"] = (sum(rows), divided.compared, divided.rest, divided.turn)
    assert (divided.compared, divided.rest) == (side.compared, side.rest)
    assert divided.first.compared.count == rows[0]
    return found


def proven(steps: Steps, folder: Path, files: list[DataFile], made: Table) -> dict[str, Any]:
    """What proofs and the search for damage find in files."""
    layout, key = made.layout, job_in(folder, steps).key_file
    digest = proof.read_back(steps, files, layout, key, SALT, name="t")
    for turn in range(2):
        added, kept = files[:1], files[1:]
        proof.prove(
            *(steps, layout, key, SALT),
            files=proof.ProvenFiles(added, kept, turn), theirs=digest, name="t",
        )  # fmt: skip
    proof.refuse_duplicates(steps, files, layout, name="t", exact=True)
    twice = [f for f in files if f.rows][-1:]
    again = folder / "twice.parquet"
    again.write_bytes(Path(twice[0].uri.removeprefix("file://")).read_bytes())
    copy = replace(twice[0], path="twice.parquet", uri=f"file://{again}")
    with pytest.raises(DuplicateKey) as caught:
        proof.refuse_duplicates(steps, [*files, copy], layout, name="t", exact=True)
    data = again.read_bytes()
    again.write_bytes(data[: len(data) // 2])
    damage = file_damage.examine(steps, Store(str(folder)), "t", layout, [*files, copy])
    return {
        "read back": digest,
        "receipt": proof.values_digest(steps, files, layout, KEY, SALT),
        "twice": sorted(caught.value.details.values()),
        "damage": sorted(damage),  # how many bytes are left depends on the writer
    }


def restated(steps: Steps, job: Job, files: list[DataFile], made: Table) -> dict[str, Any]:
    """The rows under other columns: one is gone, one is new, one has another type."""
    *left, last = made.recipe.columns[: -len(TYPES) // 2]
    more = Column("more", parse_type("int8"), True, 99)
    columns = (*left, more, replace(last, type=parse_type("oid")))
    new = lay_out(Recipe(columns, made.recipe.key_columns), {}, where="t")
    place = (steps, job.folder("restated"))
    found = restate(*place, files, made.layout, new, job.key_file)
    key = replace(columns[0], name="other")
    without = lay_out(Recipe((key, *columns[1:]), made.recipe.key_columns), {}, where="t")
    return {
        "restated": contents(found, new),
        "no key": restate(*place, files, made.layout, without, job.key_file),
    }


def rows_of(made: Table, numbers: Sequence[int], edition: int = 0) -> list[Row]:
    return [made.row(number, edition) for number in numbers]


def positions_of(made: Table, numbers: Sequence[int]) -> Integers:
    """The positions of rows, as the warehouse has them."""
    found: Integers = positions(block(rows_of(made, numbers)), made.recipe, position_seed(KEY))
    return found


def images(folder: Path, feed: VersionFeed) -> tuple[dict[str, int], list[str]]:
    """Return the counts and the images of a feed."""
    assert feed.folder is not None
    place = folder / "_driftline" / "changes" / "t" / feed.folder
    tables = (pq.read_table(place / name, partitioning=None) for name in feed.files)
    return feed.counts, sorted(repr(row) for table in tables for row in table.to_pylist())


def in_driver(small_bytes: int | None = 1 << 30) -> Steps:
    return Steps(NoSpark(), small_bytes)


class Runs:
    """What `run` found in each place; each table is taken through the steps once a place.

    `called`: the functions that were called in this process, by module's file and name.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.called: set[tuple[str, str]] = set()
        self._folders = folders
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    def in_driver(self, name: str) -> dict[str, Any]:
        return self._once("driver", name, in_driver())

    def on_spark(self, name: str, spark: SparkSession) -> dict[str, Any]:
        return self._once("spark", name, Steps(spark))

    def in_many_files(self, name: str) -> dict[str, Any]:
        """What comes of steps in this process that write a file for each that they read."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan, "FILE_BYTES", 1)
            return self._once("many files", name, in_driver())

    def in_processes(self, name: str) -> dict[str, Any]:
        """What comes of steps that read in processes beside this one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_places, "PROCESS_BYTES", 0)
            patch.setattr(step_places, "PROCESS_MEMORY", 0)
            patch.setattr(scan, "THREAD_BYTES", 1)
            return self._once("processes", name, in_driver())

    def in_lots(self, name: str) -> dict[str, Any]:
        """What comes of rows that are too many to be looked up together."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replaced_rows, "ROWS_MAX", 1)
            patch.setattr(staged_rows, "AT_ONCE_ROWS", 0)
            patch.setattr(step_places, "TASK_BYTES_MIN", 1)
            patch.setattr(step_places, "TASK_BYTES_MAX", 1)
            return self._once("lots", name, in_driver())

    def _once(self, place: str, name: str, steps: Steps) -> dict[str, Any]:
        if (place, name) not in self._found:
            with nullcontext() if place == "spark" else calls(self.called):
                self._found[place, name] = run(steps, self._folders.mktemp(place), TABLES[name])
        return self._found[place, name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_steps_in_this_process(runs: Runs, name: str) -> None:
    """The results are those that the rows demand, and no session was started."""
    made = TABLES[name]
    found = runs.in_driver(name)
    count, updated, deleted = (made.rows, 4, 2) if made.rows else (0, 0, 0)
    assert found["feed"][0] == found["feed of files"][0] == {
        "insert": 2, "update_before": updated, "update_after": updated, "delete": deleted,
    }  # fmt: skip
    assert found["feed"][1] == found["feed of files"][1]
    assert len(found["before"]) == updated + deleted
    assert found["read back"] == found["total"]
    assert found["read back"].count == len(found["restated"]) == count + 2 - deleted
    assert len(found["merged"]) == count + 2
    assert found["units"][2] == found["part"][2] + found["part"][3] == found["total"]
    assert len(found["twice"]) == updated + 2
    assert found["damage"] == ["twice.parquet"]
    assert found["no key"] == []
    assert {row["_driftline_updates"] for row in found["shipped"]} == ({0, 1} if count else {0})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["integer key", "composite key"])
def test_steps_that_write_many_files_do_the_same(runs: Runs, name: str) -> None:
    assert same(runs.in_many_files(name), runs.in_driver(name))


@pytest.mark.spark
@pytest.mark.parametrize("name", TABLES)
def test_steps_on_spark_do_the_same(spark: SparkSession, runs: Runs, name: str) -> None:
    assert same(runs.on_spark(name, spark), runs.in_driver(name))


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Compare by text, in which NaN is NaN and −0.0 is not 0.0; name the first that differs."""
    for name, value in expected.items():
        assert repr(found[name]) == repr(value), name
    return found.keys() == expected.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["integer key", "composite key"])
def test_lots_do_the_same(runs: Runs, name: str) -> None:
    assert same(runs.in_lots(name), runs.in_driver(name))


@pytest.mark.starts
@pytest.mark.skipif(STEP_THREADS < 2, reason="ONE CORE, PROCESSES OF STEPS NOT TESTED")
@pytest.mark.parametrize("name", ["integer key", "composite key"])
def test_steps_in_processes_do_the_same(
    runs: Runs, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, shares = ReadingProcesses.read, []

    def noted(self: ReadingProcesses, function: Any, parts: Any, count: int) -> Any:
        shares.append(len(parts))
        return read(self, function, parts, count)

    monkeypatch.setattr(ReadingProcesses, "read", noted)
    assert same(runs.in_processes(name), runs.in_driver(name))
    assert len(shares) >= 3
    assert max(shares) >= 2
    PROCESSES.close()


STEPS_CALL = {"scan", "spread", "added", "runs_here", "spark", "spark_to_join"}
# Files and rooms: SQL, which only Spark can do, and what `pair/views/test_incremental.py` runs in
# both places.
OF_VIEWS = {"view_phase.py", "view_verification.py", "semi_join.py", "view_rows.py", "maintenance"}


def steps_in_source() -> set[tuple[str, str]]:
    """Return every function that runs something in a chosen place: its file and its name."""
    return {step for step, is_of_views in _steps() if not is_of_views}


def steps_of_views() -> set[tuple[str, str]]:
    """Return the same of views."""
    return {step for step, is_of_views in _steps() if is_of_views}


def _steps() -> Iterator[tuple[tuple[str, str], bool]]:
    for file in sorted((ROOT / "warehouse_agent").rglob("*.py")):
        if "steps" not in (text := file.read_text()):
            continue
        is_of_views = bool(OF_VIEWS & {file.name, file.parent.name})
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(map(is_step, ast.walk(node))):
                yield (str(file), node.name), is_of_views


def is_step(node: ast.AST) -> bool:
    """Return True for a call that runs a step."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func
    return (name.id if isinstance(name, ast.Name) else getattr(name, "attr", None)) in STEPS_CALL


@contextmanager
def calls(found: set[tuple[str, str]]) -> Iterator[None]:
    """Add the functions that are called meanwhile: module's file and name."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_every_step_is_run(runs: Runs) -> None:
    for name in ("integer key", "composite key"):
        runs.in_driver(name)
    wanted = steps_in_source()
    assert {"spread", "write_staged", "superseded", "assign"} <= {name for _, name in wanted}
    assert wanted <= runs.called, wanted - runs.called


def reading(size: int) -> StepWork:
    return StepWork(StepKind.READ, size)


def test_the_place_follows_the_size(tmp_path: Path) -> None:
    log = StepLog(phases=["exchange", "list"])
    steps = Steps(NoSpark(), 1000, log)
    assert steps.runs_here(reading(1000))
    assert not steps.runs_here(reading(1001))
    assert log.places == {"list": "driver"}
    with pytest.raises(ConfigurationError) as caught:
        steps.spark(reading(1001))
    why = "it has at least 1,001 bytes, and `small_bytes` is 1,000"
    assert caught.value.details == {"Spark is needed": f"for a step of `list`: {why}"}
    assert log.places == {"list": "spark"}
    assert steps.runs_here(reading(1))
    assert log.places == {"list": "spark"}, "a phase is on Spark if any step of it is"
    assert not in_driver(0).runs_here(reading(0)), "0 leaves nothing to this process"
    pq.write_table(pa.table({"a": ["x" * 1000] * 50}), tmp_path / "f", use_dictionary=False)
    size = (tmp_path / "f").stat().st_size
    file = DataFile("f", f"file://{tmp_path}/f", size, 50)
    assert size < 20_000
    assert in_driver().size_of_rows([file]) >= 50_000
    assert in_driver(10).size_of_rows([file]) == size, "what is large is not opened"
    gone = DataFile("g", f"file://{tmp_path}/g", 7, 1)
    assert in_driver().size_of_rows([gone]) == 7
    assert work_of_digests([file]).size == 50 * DIGEST_BYTES // DIGESTS_FACTOR


def test_the_place_follows_seconds_and_memory(tmp_path: Path) -> None:
    """Where no setting says which bytes are small: a session is not even begun for what fits."""
    log = StepLog(phases=["apply"])
    steps = Steps(NoSpark(), None, log, driver_share=1e-6)
    most = steps.most
    assert 1000 < most == steps.memory < 1 << 24
    assert steps.runs_here(reading(most))
    assert (log.places, log.whys["apply"]["reason"]) == ({"apply": "driver"}, "seconds")
    assert not log.whys["apply"]["needs_spark"]
    steps.expect(*written(most))
    steps.begin(*written(most))
    too_large = StepWork(StepKind.WRITE, most + 1)
    assert not steps.runs_here(too_large)
    why = f"at least {most + 1:,} bytes, and the driver's share of memory (`driver_share`) is"
    for asked in (partial(steps.spark, too_large), partial(steps.expect, *written(most + 1))):
        with pytest.raises(ConfigurationError) as caught:
            asked()
        assert caught.value.details["Spark is needed"] == (
            f"for a step of `apply`: it has {why} {most:,}"
        )
    assert (log.places, log.whys["apply"]["reason"]) == ({"apply": "spark"}, "memory")
    assert log.whys["apply"]["needs_spark"]
    with pytest.raises(ConfigurationError) as caught:
        steps.spark_to_join(5)
    assert (
        "at least 5 bytes, and joins rows, which Spark" in caught.value.details["Spark is needed"]
    )
    pq.write_table(pa.table({"a": ["x" * 1000] * 50}), tmp_path / "f", use_dictionary=False)
    size = (tmp_path / "f").stat().st_size
    file = DataFile("f", f"file://{tmp_path}/f", size, 50)
    assert in_driver(None).size_of_rows([file]) >= 50_000


def test_a_later_step_is_expected_by_what_it_does() -> None:
    """On a cluster digests are added up by Spark where as many bytes of rows are read here, and its
    executors are checked for that before a source is asked."""
    steps = Steps(DeferredSession({"spark.master": "spark://nowhere:7077"}), None)
    digests, rows = (StepWork(kind, 60 << 20) for kind in (StepKind.DIGESTS, StepKind.READ))
    assert steps.expected(rows) is None
    assert steps.expected(rows, digests) == steps.placed(digests)
    assert steps.placed(digests).place is StepPlace.SPARK


def test_a_search_for_equal_keys_counts_what_it_holds(tmp_path: Path) -> None:
    """All keys, in this process: more than the driver's share is Spark's, though its rows fit."""
    layout = TABLES["integer key"].layout
    pq.write_table(pa.table({"a": ["x" * 100] * 500}), tmp_path / "f", use_dictionary=False)
    file = DataFile("f", f"file://{tmp_path}/f", (tmp_path / "f").stat().st_size, 500)
    size = in_driver(None).size_of_rows([file])
    log = StepLog(phases=["prove"])
    steps = Steps(NoSpark(), None, log, driver_share=2 * size / machine().memory)
    assert steps.runs_here(reading(size))
    with pytest.raises(ConfigurationError) as caught:
        proof.refuse_duplicates(steps, [file], layout, name="t", exact=True)
    said = f"it has at least {8 * size:,} bytes, and the driver's share of memory"
    assert said in caught.value.details["Spark is needed"]


def test_a_phase_has_the_reason_of_its_largest_step() -> None:
    log = StepLog(phases=["prove"])
    steps = Steps(NoSpark(), None, log)
    for size in (10, 1000, 20):
        assert steps.runs_here(reading(size))
    assert log.whys["prove"]["bytes"] == 1000
    with pytest.raises(ConfigurationError):
        steps.spark_to_join(7)
    assert steps.runs_here(reading(1 << 20))
    assert (log.places["prove"], log.whys["prove"]["bytes"]) == ("spark", 7)

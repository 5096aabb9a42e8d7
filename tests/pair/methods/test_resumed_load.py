"""A load or copy that was cut goes on: what is staged does not come again, whatever key, engine and
place.

Each frame is a staged file of its own here, and chunks are small, so that small tables have many.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline.errors import (
    DriftlineError,
    LimitExceeded,
    MalformedMessage,
    SourceUnreachable,
    ValueDoesNotFit,
)
from driftline.rows import frames
from driftline.wire import negotiation
from pyspark.sql import SparkSession

from source_agent.scan import frame_builder
from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy
from tests.harness.pair import ON_SPARK, Pair, legacy_of
from warehouse_agent.columns.layout import CHANGED, FIRST, UPDATES, Layout
from warehouse_agent.methods import resumed_load
from warehouse_agent.refresh import finish
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks import staged_chunks, staged_rows, staging
from warehouse_agent.tasks.rewrites import replaced_rows
from warehouse_agent.transport.frame_admission import StagingRoom

ROWS = 3000
FRAME_BYTES = 16_000  # of rows, some 80 bytes each
CHUNK_SHIFT = 12
KEYS = {"integer": "id", "two integers": "line, id", "text": "code"}
# Each engine and place with each kind of key; with one in every run.
IN_EVERY_RUN = {
    "sqlite": "integer",
    ON_SPARK: "text",
    "postgresql": "text",
    "mariadb": "two integers",
}
EVERYWHERE = pytest.mark.parametrize(
    ("pair", "legacy"),
    [
        pytest.param(
            key,
            engine,
            id=f"{key}-{engine}",
            marks=() if IN_EVERY_RUN.get(engine) == key else pytest.mark.soak,
        )
        for key in KEYS
        for engine in ("sqlite", ON_SPARK, "postgresql", *FAMILY)
    ],
    indirect=True,
)


@dataclass
class Line:
    """A line that is cut after so many frames; `rows` came in the last exchange."""

    cut_after: int | None = None
    rows: int = 0
    frames: int = 0

    def again(self, cut_after: int | None = None) -> None:
        self.cut_after, self.rows, self.frames = cut_after, 0, 0


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(staging, "FILE_BYTES", 1000)
    monkeypatch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", FRAME_BYTES)
    monkeypatch.setattr(staged_chunks, "chunk_shift", lambda *_: CHUNK_SHIFT)
    add, made = staging.FrameWriter.add, Line()

    def counting(writer: staging.FrameWriter, frame: bytes) -> None:
        add(writer, frame)
        made.rows += frames.head(frame).digest.count
        made.frames += 1
        if made.frames == made.cut_after:
            raise SourceUnreachable("The line is cut.")

    monkeypatch.setattr(staging.FrameWriter, "add", counting)
    return made


@pytest.fixture
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    with closing(legacy_of(request, tmp_path)) as made:
        yield made


@pytest.fixture(params=["integer", pytest.param("two integers", marks=pytest.mark.soak), "text"])
def pair(
    request: pytest.FixtureRequest, spark: SparkSession, legacy: Legacy, tmp_path: Path
) -> Iterator[Pair]:
    key = KEYS[request.param]
    legacy.execute(
        "CREATE TABLE t (id BIGINT NOT NULL, line INTEGER NOT NULL, code VARCHAR(20) NOT NULL,"
        f" note VARCHAR(60), PRIMARY KEY ({key}))"
    )
    legacy.many("INSERT INTO t VALUES (?, ?, ?, ?)", [row(i) for i in range(ROWS)])
    with Pair(spark, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        yield made


def row(i: int) -> tuple[object, ...]:
    rng = random.Random(i)
    return i * 7919 % (8 * ROWS), i % 7, f"c{i * 104_729 % 1_000_003}", rng.randbytes(20).hex()


def cut(pair: Pair, line: Line, after: int) -> int:
    """Cut a load after so many frames; return the rows that came."""
    line.again(after)
    error = pair.error("t")
    assert error["code"] == "UNREACHABLE", error
    return line.rows


def go_on(pair: Pair, line: Line) -> int:
    """Run the load to its end, and check it; return the rows that came."""
    line.again()
    pair.refresh("t")
    pair.check("t")
    assert data_files(pair) == published_files(pair), "no other file is left"
    return line.rows


def data_files(pair: Pair) -> set[str]:
    """Return the data files that are there, of all versions and of none."""
    return {str(file.relative_to(pair.root)) for file in pair.root.glob("t/**/*.parquet")}


def published_files(pair: Pair) -> set[str]:
    """Return the data files of all versions."""
    found, version = set[str](), pair.version("t")
    assert version is not None
    for number in range(version + 1):
        snapshot = head(pair.store, "t", version=number)
        assert snapshot is not None
        found |= {f"t/{file.path}" for file in snapshot.files}
    return found


def lost(gaps: int) -> int:
    """Return the most rows that come again where so many rows changed, or so often the rows before
    others are not known: a chunk, which may be a few times as long as most."""
    return gaps * 3 * (1 << CHUNK_SHIFT) // 60


def gaps(pair: Pair, line_frames: int, ends: int) -> int:
    """Return how often a step does not know the rows before others: a task of Spark knows them if
    it has their file, too."""
    return line_frames if pair.small_bytes == 0 else ends


@EVERYWHERE
def test_rows_do_not_come_again(pair: Pair, line: Line) -> None:
    first = cut(pair, line, 6)
    second = cut(pair, line, 5)
    assert first > 1000
    assert second > 500
    assert go_on(pair, line) <= ROWS - first - second + lost(gaps(pair, 6 + 5, 2))


@EVERYWHERE
def test_rows_that_changed_meanwhile(pair: Pair, line: Line, legacy: Legacy) -> None:
    """Updated, inserted and deleted, beside those that are staged and among them."""
    rng = random.Random(7)
    staged = cut(pair, line, 8)
    ids = [one[0] for one in legacy.rows("t")]
    for one in rng.sample(ids, 4):
        legacy.execute("UPDATE t SET note = 'changed' WHERE id = ?", one)
    for one in rng.sample(ids, 4):
        legacy.execute("DELETE FROM t WHERE id = ?", one)
    legacy.many("INSERT INTO t VALUES (?, ?, ?, ?)", [row(ROWS + i) for i in range(4)])
    assert go_on(pair, line) <= ROWS - staged + lost(12 + gaps(pair, 8, 1))
    legacy.execute("UPDATE t SET note = 'again' WHERE line = 3")
    pair.refresh("t")
    pair.check("t")
    pair.check_feed("t", 1)


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
@pytest.mark.parametrize("method", ["range", "sketch", "group", "full"])
def test_a_method_is_for_refreshes(pair: Pair, line: Line, method: str) -> None:
    """A load goes on as it began, by whatever method the table is to be refreshed."""
    pair.fragment_lines["t"] = f'method = "{method}"'
    came = cut(pair, line, 6) + cut(pair, line, 5)
    line.again()
    assert pair.refresh("t").method == "full"
    assert line.rows <= ROWS - came + lost(2)
    pair.check("t")


@EVERYWHERE
def test_every_row_changed(pair: Pair, line: Line, legacy: Legacy) -> None:
    """All rows come, and none of those that were staged is published."""
    cut(pair, line, 8)
    legacy.execute("UPDATE t SET note = 'other'")
    assert go_on(pair, line) == ROWS


@EVERYWHERE
def test_the_table_was_emptied(pair: Pair, line: Line, legacy: Legacy) -> None:
    cut(pair, line, 8)
    legacy.execute("DELETE FROM t")
    assert go_on(pair, line) == 0


@EVERYWHERE
def test_a_damaged_frame_comes_again(pair: Pair, line: Line) -> None:
    """So do the rows around it; nothing else does."""
    staged = cut(pair, line, 8)
    files = sorted((pair.root / "_driftline" / "staging" / "t").rglob("*.frames"))
    body = bytearray(files[3].read_bytes())
    body[len(body) // 2] ^= 1
    files[3].write_bytes(body)
    came = go_on(pair, line)
    in_frame = staged // 8
    assert ROWS - staged + in_frame <= came <= ROWS - staged + 2 * in_frame + lost(gaps(pair, 8, 3))


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_source_that_lies_about_what_it_met(
    pair: Pair, line: Line, legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that changed would stay: nothing is published, and the next load begins anew."""
    cut(pair, line, 8)
    legacy.execute("UPDATE t SET note = 'other' WHERE line = 2")
    line.again()
    with monkeypatch.context() as patch:
        patch.setattr(resumed_load, "bitmap", lambda _, count: np.ones(count, np.bool_))
        error = pair.error("t")
    assert error["code"] == "PROOF"
    assert error["details"]["cause"].startswith("the source said that it has rows")
    assert "REINDEX" not in error["remedy"]
    assert go_on(pair, line) == ROWS


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_an_older_source(pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no chunks: its rows are compared, as ever."""
    staged = cut(pair, line, 14)
    assert "knows no chunks" not in pair.said("plan", "t")
    assert json.loads(pair.said("plan", "t", "--json"))["staged_rows"]
    older = {name: what for name, what in negotiation.FEATURES.items() if name != "chunks"}
    monkeypatch.setattr("source_agent.server.service.FEATURES", older)
    assert "The source's release knows no chunks: staged rows are compared" in pair.said(
        "plan", "t"
    )
    assert go_on(pair, line) <= ROWS - staged + lost(1)


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_rows_that_changed_fill_the_room(
    pair: Pair, line: Line, legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What attempts staged before gives room to what comes now, so that a load ends."""

    def room(staging_of: staging.Staging, _: int | None) -> StagingRoom:
        return StagingRoom(100_000, staging_of.frame_bytes(), is_set=True)

    monkeypatch.setattr(staging.Staging, "room", room)
    cut(pair, line, 8)
    legacy.execute("UPDATE t SET note = 'other ' || note")
    line.again()
    assert pair.error("t")["code"] == "LIMIT"
    first = line.rows
    assert go_on(pair, line) <= ROWS - first + lost(line.frames + 1)


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", [MalformedMessage, ValueDoesNotFit, LimitExceeded])
def test_staged_rows_that_cannot_be_stored(
    pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch, kind: type[DriftlineError]
) -> None:
    """As a source with a fault sends them: they are dropped, and the load begins anew."""
    cut(pair, line, 6)
    batch, said = Layout.batch, [kind("This is no value of the column.")]

    def refusing(layout: Layout, *args: Any, **options: Any) -> pa.RecordBatch:
        if said:
            raise said.pop()
        return batch(layout, *args, **options)

    monkeypatch.setattr(Layout, "batch", refusing)
    assert go_on(pair, line) == ROWS


@pytest.mark.parametrize("legacy", [ON_SPARK], indirect=True)
def test_files_go_as_they_are_written_again(
    pair: Pair, line: Line, legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows changed all over, a disk need not hold all of what was staged three times."""
    left, rewrite = list[int](), replaced_rows.rewrite_without

    def rewriting(*args: Any) -> list[DataFile]:
        left.append(len([*pair.root.rglob("*-taken/*.parquet")]))
        return rewrite(*args)

    monkeypatch.setattr("warehouse_agent.refresh.finish.rewrite_without", rewriting)
    monkeypatch.setattr(finish, "REWRITTEN_BYTES", 1)
    cut(pair, line, 8)
    legacy.execute("UPDATE t SET note = 'other' WHERE id % 40 = 0")
    go_on(pair, line)
    assert len(left) > 1
    assert left == sorted({*left}, reverse=True)


def begin_copy(pair: Pair, legacy: Legacy) -> None:
    """Publish a version, and change most rows."""
    pair.refresh("t")
    pair.fragment_lines["t"] = 'method = "full"'
    new = "CONCAT('new ', note)" if legacy.engine == "mariadb" else "'new ' || note"
    legacy.execute(f"UPDATE t SET note = {new} WHERE line < 5")


@EVERYWHERE
def test_a_copy_that_was_cut_goes_on(pair: Pair, line: Line, legacy: Legacy) -> None:
    """With rows that changed between the attempts; its feed is that of any copy."""
    begin_copy(pair, legacy)
    first, second = cut(pair, line, 6), cut(pair, line, 5)
    assert first > 1000
    legacy.execute("UPDATE t SET note = 'again' WHERE id = 7919")
    legacy.execute("DELETE FROM t WHERE id = ?", 2 * 7919)
    assert go_on(pair, line) <= ROWS - first - second + lost(2 + gaps(pair, 6 + 5, 2))
    pair.check_feed("t", 1)


@pytest.mark.parametrize("legacy", ["sqlite", ON_SPARK], indirect=True)
@pytest.mark.parametrize("at_once", [True, False])
def test_rows_of_a_copy_carry_their_statistics_on(
    pair: Pair, line: Line, legacy: Legacy, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """As in a copy that nothing cuts: rows that did not change, that did, and new ones."""
    monkeypatch.setattr(staged_rows, "AT_ONCE_ROWS", ROWS if at_once else 0)
    begin_copy(pair, legacy)
    legacy.many("INSERT INTO t VALUES (?, ?, ?, ?)", [row(ROWS + i) for i in range(9)])
    staged = cut(pair, line, 8)
    assert go_on(pair, line) <= ROWS + 9 - staged + lost(gaps(pair, 8, 1))
    found = Counter(statistics(pair))
    is_changed = Counter(i % 7 < 5 for i in range(ROWS))
    assert found == {
        (0, 1, 1): is_changed[True],
        (0, 0, 0): is_changed[False],
        (1, 0, 1): 9,
    }


def statistics(pair: Pair) -> list[tuple[int, ...]]:
    """Return first version, updates and last change of each published row."""
    snapshot = head(pair.store, "t")
    assert snapshot is not None
    tables = [pq.read_table(file.uri, partitioning=None) for file in snapshot.files]
    columns = (FIRST, UPDATES, CHANGED)
    return [tuple(r[name] for name in columns) for one in tables for r in one.to_pylist()]


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_copy_that_brings_nothing_new_publishes_nothing(
    pair: Pair, line: Line, legacy: Legacy
) -> None:
    begin_copy(pair, legacy)
    staged = cut(pair, line, 8)
    before = json.loads(pair.said("plan", "t", "--json"))
    assert before["staged_rows"] == staged
    assert before["staged_listed"]
    lines = pair.said("plan", "t").splitlines()
    assert any("are staged; the copy that was cut goes on; about" in one for one in lines)
    (chosen,) = [one for one in before["candidates"] if one["what"] == before["chosen"]]
    assert before["chosen"] == "full copy"
    assert chosen["bytes"] < ROWS * 80
    legacy.execute("UPDATE t SET note = substr(note, 5) WHERE line < 5")
    go_on(pair, line)
    assert pair.version("t") == 0


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_a_copy_by_an_older_source(
    pair: Pair, line: Line, legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows no chunks: what is staged is compared, and then all rows come if most differ."""
    begin_copy(pair, legacy)
    del pair.fragment_lines["t"]
    cut(pair, line, 8)
    older = {name: what for name, what in negotiation.FEATURES.items() if name != "chunks"}
    monkeypatch.setattr("source_agent.server.service.FEATURES", older)
    said = json.loads(pair.said("plan", "t", "--json"))
    assert said["staged_rows"] is None
    assert said["staged_bytes"]
    assert go_on(pair, line) <= ROWS
    pair.check_feed("t", 1)


@pytest.mark.parametrize("legacy", ["sqlite"], indirect=True)
def test_what_a_comparison_staged_is_compared(pair: Pair, line: Line, legacy: Legacy) -> None:
    """Few rows differ: no copy had been asked for."""
    pair.refresh("t")
    legacy.execute("UPDATE t SET note = 'other' WHERE line = 3")
    pair.fragment_lines["t"] = 'method = "range"'
    first = cut(pair, line, 1)
    assert first
    assert go_on(pair, line) <= ROWS / 7 + 1 - first
    pair.check_feed("t", 1)

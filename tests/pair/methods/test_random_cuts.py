"""Loads that are cut at random, whose rows change between attempts, with releases taking turns.

After each load the rows that a reader of Delta finds are those of the source. What comes in the
last attempt is no more than a load of that table, and no row that is staged in a whole chunk comes
again unless something near it changed.
"""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import SourceUnreachable
from driftline.wire import negotiation

from source_agent.scan import frame_builder
from source_agent.server import service
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.refresh import prepare
from warehouse_agent.tasks import staged_chunks, staging

IN_EVERY_RUN, BY_THE_SOAK = 12, 500
TABLES = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, a INT, note TEXT)",
    "CREATE TABLE t (id INT NOT NULL, a INT NOT NULL, note TEXT, PRIMARY KEY (a, id))",
    "CREATE TABLE t (id INT NOT NULL, a INT, note TEXT NOT NULL PRIMARY KEY)",
    "CREATE TABLE t (id INT, a INT, note TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
)
PACKED_MORE = 1.1  # by which frames of fewer rows may be packed worse


@dataclass
class Line:
    """Counts the bytes of frames, and is cut after so many."""

    cut_after: int | None = None
    frame_bytes: int = 0

    def take(self, size: int) -> None:
        self.frame_bytes += size
        if self.cut_after is not None and self.frame_bytes > self.cut_after:
            raise SourceUnreachable("The line is cut.")


def load(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> bool:
    """Live through one load; return True if its last attempt was told chunks.

    Raises:
        AssertionError: another error than the cut, other rows, or more bytes than a load takes.
    """
    drawn, line = random.Random(seed), Line()
    patch.setattr(staging, "FILE_BYTES", drawn.choice([1, 3000, 20_000]))
    patch.setattr(frame_builder, "FRAME_BODY_BYTES_TARGET", drawn.choice([2000, 10_000, 90_000]))
    patch.setattr(staged_chunks, "chunk_shift", lambda *_: drawn.choice([12, 13, 14]))
    add = staging.FrameWriter.add

    def adding(writer: staging.FrameWriter, frame: bytes) -> None:
        add(writer, frame)
        line.take(len(frame))

    patch.setattr(staging.FrameWriter, "add", adding)
    statement = drawn.choice(TABLES)
    with closing(SqliteLegacy(folder / "erp.db")) as legacy:
        legacy.execute(statement)
        edit(legacy, drawn, inserted=drawn.choice([0, 30, 900, 2500]))
        with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
            pair.small_bytes = 4 << 30
            told = False
            for cut in [*drawn.choices([0.1, 0.4, 0.7, 0.9, 1.0], k=drawn.randint(0, 4)), None]:
                size = 100 * len(legacy.rows("t"))
                line.cut_after = None if cut is None else int(size * cut * drawn.random())
                line.frame_bytes = 0
                told = attempt(pair, drawn, patch)
                if cut is not None and pair.version("t") is None:
                    edit(legacy, drawn, inserted=drawn.choice([0, 0, 3, 200]))
            pair.check("t")
            came, line.frame_bytes = line.frame_bytes, 0
            if told:
                alone = Pair(NoSpark(), legacy, folder / "alone", {"t": 'table = "t"'})
                with alone:
                    alone.small_bytes = 4 << 30
                    alone.refresh("t")
                assert came <= PACKED_MORE * line.frame_bytes + 200
    return told


def attempt(pair: Pair, drawn: random.Random, patch: pytest.MonkeyPatch) -> bool:
    """Load, with a release of either side; return True if both know chunks."""
    is_known = drawn.random() < 0.7
    features = dict(negotiation.FEATURES)
    with patch.context() as older:
        if not is_known and drawn.random() < 0.5:
            del features["chunks"]
            older.setattr(service, "FEATURES", features)
        elif not is_known:
            older.setattr(prepare, "_staged_chunks", lambda *_: None)
        if drawn.random() < 0.2:
            pair.restart()
        (report,) = pair.reports("t")
    assert report.error is None or report.error["code"] == "UNREACHABLE", report.error
    return is_known


def edit(legacy: SqliteLegacy, drawn: random.Random, *, inserted: int) -> None:
    """Insert rows, and update and delete none, some or many of those that are there."""
    ids = [row[0] for row in legacy.rows("t")]
    for share in (0.0, 0.001, 0.3):
        if drawn.random() < 0.3:
            some = drawn.sample(ids, int(len(ids) * share))
            legacy.many(
                "UPDATE t SET a = -id - ? WHERE id = ?", [(drawn.randrange(9), i) for i in some]
            )
            gone = drawn.sample(ids, int(len(ids) * share / 3))
            legacy.many("DELETE FROM t WHERE id = ?", [(i,) for i in gone])
    first = max(map(abs, ids), default=0) + 1
    rows: list[tuple[Any, ...]] = []
    for i in range(first, first + inserted):
        note = random.Random(i).randbytes(drawn.choice([4, 40])).hex()
        rows.append((i * drawn.choice([1, -1]), i % 7, f"{i} {note}"))
    legacy.many("INSERT OR IGNORE INTO t VALUES (?, ?, ?)", rows)


@pytest.mark.parametrize("seed", range(IN_EVERY_RUN))
def test_a_load_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    load(tmp_path, seed, monkeypatch)


@pytest.mark.soak
def test_many_loads_that_are_cut(tmp_path: Path) -> None:
    told = 0
    for seed in range(IN_EVERY_RUN, BY_THE_SOAK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            told += load(folder, seed, patch)
    assert told > BY_THE_SOAK / 2

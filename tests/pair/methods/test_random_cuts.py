"""Loads and copies that are cut at random, whose rows change between attempts, with releases taking
turns.

After each one the rows that a reader of Delta finds are those of the source. What comes in the
last attempt is no more than a load of that table, and no row that is staged in a whole chunk comes
again unless something near it changed.
"""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import SourceUnreachable
from driftline.failpoints import Failpoint
from driftline.wire import negotiation

from source_agent.scan import frame_builder
from source_agent.server import service
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.methods import registry
from warehouse_agent.refresh import prepare
from warehouse_agent.refresh.job import Job
from warehouse_agent.tasks import staged_chunks, staged_rows, staging
from warehouse_agent.tasks.staged_chunks import StagedChunks

IN_EVERY_RUN, BY_THE_SOAK = 6, 500
POINTS = (
    WarehouseFailpoint.PREPARED,
    WarehouseFailpoint.FRAMES_STAGED,
    WarehouseFailpoint.COMPARED,
    WarehouseFailpoint.ROWS_WRITTEN,
    WarehouseFailpoint.FILE_WRITTEN,
    WarehouseFailpoint.DATA_WRITTEN,
    WarehouseFailpoint.PROVEN,
    WarehouseFailpoint.COMMITTING,
)
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


@dataclass
class Drawn:
    """A life of one table, by a seed: sizes of files and frames, and when the line is cut."""

    seed: int
    line: Line = field(default_factory=Line)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        drawn, line = self.random, self.line
        patch.setattr(staging, "FILE_BYTES", drawn.choice([1, 3000, 20_000]))
        patch.setattr(
            frame_builder, "FRAME_BODY_BYTES_TARGET", drawn.choice([2000, 10_000, 90_000])
        )
        patch.setattr(staged_chunks, "chunk_shift", lambda *_: drawn.choice([12, 13, 14]))
        add = staging.FrameWriter.add

        def adding(writer: staging.FrameWriter, frame: bytes) -> None:
            add(writer, frame)
            line.take(len(frame))

        patch.setattr(staging.FrameWriter, "add", adding)

    def cuts(self) -> list[float | None]:
        """Return after which shares of a table the line is cut, None: it is not."""
        return [*self.random.choices([0.1, 0.4, 0.7, 0.9, 1.0], k=self.random.randint(0, 4)), None]

    def cut(self, share: float | None, legacy: SqliteLegacy) -> None:
        size = 100 * len(legacy.rows("t"))
        self.line.cut_after = None if share is None else int(size * share * self.random.random())
        self.line.frame_bytes = 0


def load(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> bool:
    """Live through one load; return True if its last attempt was told chunks.

    Raises:
        AssertionError: another error than the cut, other rows, or more bytes than a load takes.
    """
    life = Drawn(seed)
    life.patch(patch)
    drawn, line = life.random, life.line
    with closing(SqliteLegacy(folder / "erp.db")) as legacy:
        legacy.execute(drawn.choice(TABLES))
        edit(legacy, drawn, inserted=drawn.choice([0, 30, 900, 2500]))
        with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
            pair.small_bytes = 4 << 30
            told = False
            for cut in life.cuts():
                life.cut(cut, legacy)
                told = attempt(pair, drawn, patch)
                if cut is not None and pair.version("t") is None:
                    edit(legacy, drawn, inserted=drawn.choice([0, 0, 3, 200]))
            pair.check("t")
            if told:
                assert line.frame_bytes <= PACKED_MORE * copy_bytes(life, legacy, folder) + 200
    return told


def copy(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> bool:
    """Live through a copy that replaces a version; return True if its last attempt went on by
    chunks.

    Raises:
        AssertionError: another error than the cut, other rows, another feed, or more bytes than a
            copy takes.
    """
    life = Drawn(seed)
    life.patch(patch)
    drawn, line = life.random, life.line
    patch.setattr(staged_rows, "AT_ONCE_ROWS", drawn.choice([0, 100_000]))
    patch.setattr(staged_chunks, "FILE_BYTES", drawn.choice([20_000, 512 << 20]))
    with closing(SqliteLegacy(folder / "erp.db")) as legacy:
        legacy.execute(drawn.choice(TABLES))
        edit(legacy, drawn, inserted=drawn.choice([30, 900, 2500]))
        with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as pair:
            pair.small_bytes = 4 << 30
            pair.refresh("t")
            change(legacy, drawn)
            is_by_forecast = drawn.random() < 0.5
            if is_by_forecast:
                patch.setattr(registry, "_takes_more_than_a_copy", lambda *_: True)
            else:
                pair.fragment_lines["t"] = 'method = "full"'
            went_on = False
            for cut in life.cuts():
                if pair.version("t") != 0:
                    break
                life.cut(cut, legacy)
                with patch.context() as one:
                    taken = counted(one)
                    if is_by_forecast and drawn.random() < 0.2:
                        one.setattr(prepare, "goes_on", lambda *_: False)
                    if cut is not None and drawn.random() < 0.4:
                        stop_at(drawn, one)
                    attempt(pair, drawn, patch)
                    went_on = bool(taken)
                if cut is not None and pair.version("t") == 0:
                    edit(legacy, drawn, inserted=drawn.choice([0, 0, 3, 200]))
            pair.check("t")
            if pair.version("t"):
                pair.check_feed("t", 1)
            assert line.frame_bytes <= PACKED_MORE * copy_bytes(life, legacy, folder) + 200
    return went_on


def counted(patch: pytest.MonkeyPatch) -> list[StagedChunks]:
    """Return the list of what attempts take up from now on."""
    take_up, found = staged_chunks.take_up, list[StagedChunks]()

    def taking(*args: Any) -> StagedChunks:
        found.append(take_up(*args))
        return found[-1]

    patch.setattr(prepare, "take_up", taking)
    return found


def copy_bytes(life: Drawn, legacy: SqliteLegacy, folder: Path) -> int:
    """Return the bytes of the frames of a copy that nothing cuts."""
    life.cut(None, legacy)
    with Pair(NoSpark(), legacy, folder / "alone", {"t": 'table = "t"'}) as alone:
        alone.small_bytes = 4 << 30
        alone.refresh("t")
    return life.line.frame_bytes


def change(legacy: SqliteLegacy, drawn: random.Random) -> None:
    """Change most rows, some or none."""
    ids = [row[0] for row in legacy.rows("t")]
    some = drawn.sample(ids, int(len(ids) * drawn.choice([0.0, 0.3, 0.9, 1.0])))
    legacy.many("UPDATE t SET a = 7 + a WHERE id = ?", [(i,) for i in some])


def stop_at(drawn: random.Random, patch: pytest.MonkeyPatch) -> None:
    """Let an attempt end at a point of its way, and leave behind whatever it has written."""
    point, after = drawn.choice(POINTS), [drawn.randint(1, 3)]
    reach = Failpoint.reach

    def reaching(self: Failpoint) -> None:
        reach(self)
        if self is point:
            after[0] -= 1
            if after[0] == 0:
                raise SourceUnreachable("The process ends here.")

    patch.setattr(Failpoint, "reach", reaching)
    patch.setattr(Job, "discard", lambda _: None)


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


LIVES = {"load": load, "copy": copy}


@pytest.mark.parametrize("what", LIVES)
@pytest.mark.parametrize("seed", range(IN_EVERY_RUN))
def test_what_is_cut_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, what: str
) -> None:
    LIVES[what](tmp_path, seed, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("what", LIVES)
def test_many_that_are_cut(tmp_path: Path, what: str) -> None:
    told = 0
    for seed in range(IN_EVERY_RUN, BY_THE_SOAK):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            told += LIVES[what](folder, seed, patch)
    assert told > BY_THE_SOAK / 4

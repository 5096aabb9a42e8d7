"""Both halves of a load that goes on, over messages alone: any edit, any part that was staged; and
either half against another that lies."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bools
from driftline.errors import DriftlineError, MalformedMessage
from driftline.limits import CHUNKS_MAX
from driftline.reconciliation.chunks import ChunkSums
from driftline.reconciliation.ranges import uniform
from driftline.rows import frames
from driftline.rows.digests import MixedFingerprints, mix
from driftline.values.types import Recipe
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.exchange_pair import (
    INTEGER,
    SALT,
    Ours,
    Pair,
    Table,
    encode,
    fill,
    open_session,
)
from tests.pair.exchange.test_both_halves import Bench, Script, bench, bomb, database, opening_with
from warehouse_agent.methods.resumed_load import ListedSide
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.difference import NoDifference, Outcome, PlacedRows
from warehouse_agent.tasks.staged_chunks import StagedChunks

__all__ = ["bench", "database"]  # fixtures

SHIFT = 12
TEXTS = [random.Random(i).randbytes(100).hex() for i in range(40)]


def table(count: int, version: int = 0) -> Table:
    return [(k, TEXTS[(k + version) % 40], b"") for k in range(count)]


def staged(rows: Table, recipe: Recipe) -> StagedChunks:
    """Return these rows as one data file, without what is no whole chunk."""
    ours = Ours([encode(row) for row in rows], recipe, uniform(1))
    sizes = np.array([len(row) for row in ours.rows], np.int64)
    mixed = mix(SALT, *ours.fingerprints(ours.rows)) if rows else MixedFingerprints(NONE, NONE)
    ends, digests = ChunkSums(SHIFT).add(sizes, mixed)
    counts = np.diff(ends, prepend=0)
    file = DataFile("file", "file:///file", 0, int(counts.sum()))
    return StagedChunks((file,), SHIFT, digests, counts, np.zeros(len(counts), np.int64))


NONE: U64 = np.zeros(0, np.uint64)


def kept(rows: Table, chunks: StagedChunks, gone: PlacedRows) -> list[bytes]:
    """Return the staged rows that are not dropped."""
    is_kept: Bools = ~gone.at("file", 0, chunks.files[0].rows)
    return [encode(rows[i]) for i in np.flatnonzero(is_kept)]


def load(path: Path, theirs: Table, ours: Table) -> tuple[int, int]:
    """Go on with a load that staged `ours`; check what comes of it. Return the rows that came, and
    those that were staged and are kept."""
    path.unlink(missing_ok=True)
    fill(path, INTEGER, theirs)
    with closing(open_session(path)) as session:
        shape = session.describe(INTEGER.relation)
        pair = Pair(session, shape)
        came = list[bytes]()
        half = Ours([], shape.recipe, uniform(1))
        terms, over = half.talk(pair, came.append)
        chunks = staged(ours, shape.recipe)
        found = over.run(ListedSide(chunks).open(terms))
        assert pair.is_done
    assert isinstance(found, Outcome)
    gone = found.difference
    if isinstance(gone, NoDifference):
        assert not theirs, "nothing is published, and the source has nothing"
        return len(came), 0
    assert isinstance(gone, PlacedRows)
    shipped = [
        row
        for data in came
        for row in frames.verify(frames.decode(data), half.fingerprints)[0].rows()
    ]
    stay = kept(ours, chunks, gone)
    assert Counter(stay + shipped) == Counter(map(encode, theirs))
    assert found.theirs.count == len(theirs)
    return len(shipped), len(stay)


def test_what_is_staged_does_not_come(tmp_path: Path) -> None:
    rows = table(2000)
    came, stay = load(tmp_path / "erp.db", rows, rows[:1500])
    assert came + stay == 2000
    assert stay > 1300
    assert load(tmp_path / "erp.db", rows, rows)[1] > 1800
    assert load(tmp_path / "erp.db", rows, []) == (2000, 0)
    assert load(tmp_path / "erp.db", [], rows) == (0, 0)


def test_rows_that_are_staged_twice_are_kept_once(tmp_path: Path) -> None:
    rows = table(1000)
    came, stay = load(tmp_path / "erp.db", rows, rows + rows)
    assert came + stay == 1000


@settings(max_examples=60)
@given(st.data())
def test_any_edit(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """However the rows changed since, and in whatever order parts of them were staged."""
    count = data.draw(st.integers(0, 800), "rows")
    ours = table(count)
    parts = data.draw(st.lists(st.tuples(st.integers(0, 800), st.integers(0, 800))), "staged")
    came = [row for first, end in parts for row in ours[first:end]]
    changed = data.draw(st.sets(st.integers(0, 820), max_size=6), "changed")
    deleted = data.draw(st.sets(st.integers(0, 820), max_size=6), "deleted")
    theirs = [(k, text, b"new" if k in changed else old) for k, text, old in table(count + 9)]
    load(
        tmp_path_factory.getbasetemp() / "chunks.db",
        [row for row in theirs if row[0] not in deleted],
        came,
    )


def chunks(data: bytes, *, shift: int = SHIFT, last: bool = True) -> pb.Request:
    return pb.Request(chunks=pb.Chunks(shift=shift, digests=data, last=last))


TWO = np.array([3, 9], "<u8").tobytes()
LISTS: dict[str, list[pb.Request]] = {
    "the stream ends": [],
    "no list": [pb.Request(whole=pb.Whole())],
    "half a digest": [chunks(TWO[:-1])],
    "digests that descend": [chunks(TWO[8:] + TWO[:8])],
    "a digest twice": [chunks(TWO[:8] * 2)],
    "a piece of nothing": [chunks(b"", last=False), chunks(TWO)],
    "chunks of another size": [chunks(TWO[:8], last=False), chunks(TWO[8:], shift=SHIFT + 1)],
    "chunks that are too small": [chunks(TWO, shift=11)],
    "chunks that are too large": [chunks(TWO, shift=21)],
    "chunks of 2^32 − 1": [chunks(TWO, shift=2**32 - 1)],
    "more than are allowed": [chunks(bytes(CHUNKS_MAX), last=False)] * 8 + [chunks(TWO)],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_bad_list_is_refused_before_anything_is_read(bench: Bench, name: str) -> None:
    opening = opening_with(bench.opening, chunks=True, count=0)
    with pytest.raises(MalformedMessage):
        bench.say(*LISTS[name], opening=opening)
    assert bench.tally.scans == 0


@pytest.mark.parametrize("said", ["count", "within", "between", "grouping", "sketch", "mark"])
def test_chunks_are_listed_by_who_compares_nothing(bench: Bench, said: str) -> None:
    opening = opening_with(bench.opening, chunks=True, count=int(said == "count"))
    if said == "mark":
        opening.since.mark = b"mark"
    elif said != "count":
        getattr(opening, said).SetInParent()
    with pytest.raises(DriftlineError):
        bench.say(chunks(TWO), opening=opening)
    assert bench.tally.scans == 0


def test_digests_that_nobody_has(bench: Bench) -> None:
    """All rows come, and none of the list is met."""
    opening = opening_with(bench.opening, chunks=True, count=0)
    end = bench.say(chunks(TWO), opening=opening)[-1].finished
    assert end.count == len(bench.ours.rows)
    assert end.met
    assert bench.say(chunks(b""), opening=opening)[-1].finished.count == len(bench.ours.rows)


@pytest.mark.parametrize("met", [b"", b"?", bytes(9), bomb(1 << 40)])
def test_a_source_that_lies_about_what_it_met(bench: Bench, met: bytes) -> None:
    """A list of another length is refused; a false one is seen by the proof."""
    end = pb.Reply(
        finished=pb.Finished(count=12, sum=bytes(16), as_of="2026-01-02T03:04:05Z", met=met)
    )
    rows: Table = table(300)
    half = Ours([], bench.shape.recipe, uniform(1))
    terms, over = half.talk(Script([end]))
    side: Any = ListedSide(staged(rows, bench.shape.recipe))
    with pytest.raises(MalformedMessage):
        over.run(side.open(terms))

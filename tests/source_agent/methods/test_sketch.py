"""Sketches: cells that decode are answered with rows; those that do not are reported."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.reconciliation.ranges import strata
from driftline.reconciliation.sketches import HASHES, PRIME, Embedding, Grid, unpack

from source_agent.methods import sketch
from source_agent.scan import accumulators
from tests.harness.agents import SALT
from tests.harness.asked_source import AskedSource, asked_source, bag, kinds
from tests.harness.exchange_pair import Table, encode

THIRD, SPAN = 120, 400
EMBEDDING = Embedding(SPAN, 0)
ROWS: Table = [(key, "a", None) for key in range(SPAN)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def changed(count: int) -> Table:
    """Our rows: some of theirs are others."""
    return [(key, "b" if key % (SPAN // count) == 0 else "a", None) for key in range(SPAN)]


def opening(source: AskedSource, ours: Table, fold: int) -> pb.Open:
    cells = source.cells(ours, EMBEDDING, THIRD)
    said = source.opening(ours)
    said.strata = strata(cells.r, SALT).tobytes()
    said.sketch.CopyFrom(pb.Sketch(span=SPAN, third=THIRD, fold=fold, check=cells.check))
    return said


def cells(source: AskedSource, ours: Table, fold: int) -> pb.Request:
    """All our cells, on this grid."""
    folded = source.cells(ours, EMBEDDING, THIRD).folded(Grid(THIRD, fold))
    return pb.Request(cells=pb.Cells(fold=fold, cells=folded.to_bytes(), last=True))


def later(said: pb.Open) -> tuple[pb.Open, pb.Request]:
    """Leave for `Sums` what comes later."""
    sums = pb.Sums(sum=said.sum, strata=said.strata, check=said.sketch.check)
    said.later = True
    said.ClearField("sum")
    said.ClearField("strata")
    said.sketch.ClearField("check")
    return said, pb.Request(sums=sums)


def test_what_comes_behind_the_scan_is_answered_alike(source: AskedSource) -> None:
    for fold, ours in ((4, ROWS), (1, changed(4)), (0, changed(4)), (60, changed(100))):
        now, sent = opening(source, ours, fold), [cells(source, ours, fold)] if fold else []
        go_on = [pb.Request(whole=pb.Whole())] if fold in {0, 60} else []
        answers = source.say(now, *sent, *go_on)
        said, sums = later(now)
        found = source.say(said, sums, *sent, *go_on)
        assert found[:-1] == answers[:-1]
        ends = [(end.finished.equal, end.finished.sum) for end in (found[-1], answers[-1])]
        assert ends[0] == ends[1]


def test_rows_are_read_before_sums_are_awaited(source: AskedSource) -> None:
    said, sums = later(opening(source, ROWS, 0))
    read = list[int]()

    def requests() -> Iterator[pb.Request]:
        read.append(source.tally.rows_read)
        yield sums

    assert kinds(source.replies(said, requests())) == ["finished"]
    assert read == [SPAN]


@pytest.mark.parametrize(
    "broken",
    [
        pb.Open(sum=bytes(16)),
        pb.Open(strata=b"s"),
        pb.Open(sketch=pb.Sketch(check=1)),
        pb.Open(grouping=pb.Grouping()),
        pb.Open(since=pb.Since(mark=b"m")),
    ],
)
def test_what_comes_twice_or_cannot_come_later_is_refused(
    source: AskedSource, broken: pb.Open
) -> None:
    said, sums = later(opening(source, ROWS, 0))
    said.MergeFrom(broken)
    with pytest.raises(MalformedMessage):
        source.say(said, sums)
    said.ClearField("sketch")
    with pytest.raises(MalformedMessage):
        source.say(said, sums)
    assert source.tally.rows_read == 0


@pytest.mark.parametrize(
    "broken", [pb.Sums(sum=bytes(15)), pb.Sums(strata=b"s"), pb.Sums(check=PRIME)]
)
def test_malformed_sums_are_refused(source: AskedSource, broken: pb.Sums) -> None:
    said, sums = later(opening(source, ROWS, 0))
    sums.sums.MergeFrom(broken)
    with pytest.raises(MalformedMessage):
        source.say(said, sums)


def test_equal_totals_end_it(source: AskedSource) -> None:
    replies = source.say(opening(source, ROWS, 4), cells(source, ROWS, 4))
    assert kinds(replies) == ["finished"]


def test_what_decodes_is_answered_with_rows_and_keys_without_rows(source: AskedSource) -> None:
    ours: Table = [row for row in changed(4) if row[0] not in {3, 50}]
    replies = source.say(opening(source, ours, 1), cells(source, ours, 1))
    assert kinds(replies) == ["rows", "deleted", "finished"]
    assert sum(source.shipped(replies).values()) == 6
    assert source.shipped(replies) == bag(ROWS) - bag(ours)
    assert deleted(replies[1]).tolist() == []


def deleted(reply: pb.Reply) -> np.ndarray:
    return unpack(reply.deleted.ks, span=SPAN, count_max=SPAN)


def test_keys_without_rows_are_named(tmp_path: Path) -> None:
    theirs: Table = [row for row in ROWS if row[0] not in {17, 333}]
    with asked_source(tmp_path, theirs) as source:
        replies = source.say(opening(source, ROWS, 1), cells(source, ROWS, 1))
    assert kinds(replies) == ["deleted", "finished"]
    assert deleted(replies[0]).tolist() == [17, 333]


def test_rows_outside_the_embedding_are_shipped(tmp_path: Path) -> None:
    new: Table = [(-5, "new", None), (SPAN, "new", None), (2**62, "new", None)]
    with asked_source(tmp_path, [*ROWS, *new]) as source:
        replies = source.say(opening(source, ROWS, 1), cells(source, ROWS, 1))
        assert source.shipped(replies) == bag(new)
        assert source.tally.scans == 1


def test_few_rows_are_found_by_index_and_many_by_a_scan(source: AskedSource) -> None:
    for count, scans in ((4, 1), (200, 2)):
        ours = changed(count)
        source.tally.scans = 0
        replies = source.say(opening(source, ours, 1), cells(source, ours, 1))
        assert source.shipped(replies) == bag(ROWS) - bag(ours)
        assert source.tally.scans == scans


def test_cells_that_do_not_decode_are_reported_and_refined(source: AskedSource) -> None:
    """Then all children of the stuck cells but the last of each are enough."""
    ours = changed(40)
    coarse, fine = Grid(THIRD, 60), Grid(THIRD, 1)
    verdicts: list[pb.Verdict] = []

    def requests() -> Iterator[pb.Request]:
        yield cells(source, ours, 60)
        said = np.frombuffer(zstandard.decompress(verdicts[0].stuck), np.uint8)
        stuck = np.unpackbits(said, bitorder="little")[: len(coarse)].astype(bool)
        more = source.cells(ours, EMBEDDING, THIRD).children(coarse, fine, stuck)
        yield pb.Request(cells=pb.Cells(fold=1, cells=more.to_bytes(), last=True))

    replies = []
    for reply in source.replies(opening(source, ours, 60), requests()):
        replies.append(reply)
        if reply.HasField("verdict"):
            verdicts.append(reply.verdict)
    assert kinds(replies) == ["verdict", "rows", "deleted", "finished"]
    assert source.shipped(replies) == bag(ROWS) - bag(ours)


def test_the_first_verdict_alone_has_a_sample_of_cells(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch, "sampled", lambda *_: 8)  # only larger tables are worth a sample
    ours = changed(100)
    said = opening(source, ours, 0)
    first = next(source.replies(said))
    assert len(first.verdict.sample) == 8
    assert first.verdict.stuck == b""
    asked = [cells(source, ours, 60), pb.Request(whole=pb.Whole())]
    replies = source.say(said, *asked)
    assert kinds(replies)[:2] == ["verdict", "verdict"]
    assert replies[1].verdict.sample == b""
    assert replies[1].verdict.stuck
    assert source.shipped(replies) == bag(ROWS), "another method went on"


def test_cells_come_no_more_than_a_number_of_times(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch, "CELLS_TAKEN_MAX", 1)
    ours = changed(100)
    asked = [cells(source, ours, 60), cells(source, ours, 30)]
    with pytest.raises(MalformedMessage, match="more than 1 times"):
        source.say(opening(source, ours, 60), *asked)


def test_malformed_cells_are_refused_before_anything_is_read(source: AskedSource) -> None:
    with pytest.raises(MalformedMessage):
        source.say(opening(source, ROWS, 4), pb.Request(cells=pb.Cells(fold=4, last=True)))
    assert source.tally.rows_read == 0


@pytest.mark.parametrize("go_on", ["decoded", "whole"])
def test_the_cells_are_freed_before_a_row_is_shipped(
    source: AskedSource, go_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are up to 35 MB, which rows on their way out need."""
    made: list[Any] = []

    class Watched(accumulators.SketchCells):
        def __init__(self, *said: Any) -> None:
            super().__init__(*said)
            made.append(weakref.ref(self.cells))

    monkeypatch.setattr(sketch, "SketchCells", Watched)
    ours = changed(4)
    fold = 1 if go_on == "decoded" else 120
    asked = iter([cells(source, ours, fold), pb.Request(whole=pb.Whole())])
    for reply in source.replies(opening(source, ours, fold), asked):
        if reply.HasField("rows"):
            gc.collect()
            assert [each() for each in made] == [None]
            return
    pytest.fail("no row was shipped")


def test_k_of_hashed_keys_are_found_by_a_scan(source: AskedSource) -> None:
    hashed = Embedding(SPAN)
    ours = changed(4)
    mine = source.cells(ours, hashed, THIRD)
    said = source.opening(ours)
    said.strata = strata(mine.r, SALT).tobytes()
    said.sketch.CopyFrom(pb.Sketch(span=SPAN, hashed=True, third=THIRD, fold=1, check=mine.check))
    sent = pb.Request(cells=pb.Cells(fold=1, cells=mine.to_bytes(), last=True))
    replies = source.say(said, sent)
    assert kinds(replies)[-1] == "finished"
    assert source.tally.scans == 2
    # Rows whose keys share a k with a changed one are shipped too.
    assert set(bag(ROWS) - bag(ours)) <= set(source.shipped(replies))
    assert len(mine) == HASHES * THIRD
    assert encode(ROWS[0]) in source.shipped(replies)

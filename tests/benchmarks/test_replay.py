"""benchmarks.replay on the first commits of a real table: right, repeatable, and few bytes."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.replay import results as replay_results
from benchmarks.replay.commits import HISTORIES, Warehouse, replay, times_of
from benchmarks.replay.results import Record
from benchmarks.replay.sides import Recorded, Source
from tests.harness.histories import DATA, Commit, History, available
from warehouse_agent.planning.network import Line

NAME, COMMITS = HISTORIES[0], 40
FLOORS_MAX = 3

pytestmark = [
    pytest.mark.slow,  # replays 40 commits
    pytest.mark.skipif(
        not available(NAME), reason=f"NO REAL TABLES, NOT TESTED: {DATA} is not there"
    ),
]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """`replay` itself compares every state with what the curators recorded."""
    return list(replay(NAME, upto=COMMITS))


def test_every_commit_is_one_refresh_of_few_bytes(records: list[Record]) -> None:
    assert [r.commit for r in records] == list(range(1, COMMITS + 1))
    assert records[0].expected is None
    floor = sum(r.floor_bytes for r in records)
    assert sum(r.bytes for r in records) <= FLOORS_MAX * floor + sum(r.idle_bytes for r in records)
    for record in records:
        assert 0 < record.floor_bytes < record.bytes < record.load_bytes < record.csv_bytes
        assert record.bare_bytes <= record.idle_bytes < record.bytes
        assert record.frame_bytes < record.received_bytes


def test_results_are_read_as_they_were_written(records: list[Record], tmp_path: Path) -> None:
    file = tmp_path / "replay.jsonl"
    assert list(replay_results.write(records, file)) == records
    assert replay_results.read(file) == records
    table = replay_results.summary(records, connection_bytes=0)
    assert f"| the others | {COMMITS} |" in table
    driftline = sum(r.bytes for r in records)
    assert f"| driftline | {replay_results.readable(driftline)} | 1.00 |" in table


def test_a_refresh_of_no_change_takes_what_was_said(tmp_path: Path) -> None:
    history, times = History(NAME), times_of(NAME)
    recorded = Recorded(history)
    rows = list(recorded.values.values())
    with (
        closing(Source(tmp_path / "erp.db", history, rows)) as source,
        closing(source.open()) as session,
    ):
        shape = session.describe(source.relation)
        warehouse = Warehouse(shape.recipe, Line())
        for number in range(3):
            record = warehouse.refresh(session, shape, times[number], number)
    assert (record.changed, record.bytes) == (0, record.idle_bytes)
    assert set(warehouse.copy.rows) == set(recorded.rows.values())


def test_a_copy_that_is_not_what_was_recorded_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(recorded: Recorded, commit: Commit) -> None:
        """The oracle stays where it was."""

    monkeypatch.setattr(Recorded, "advance", forget)
    with pytest.raises(AssertionError, match=r"commit 1$"):
        list(replay(NAME, upto=1))


def test_the_picture_has_words_and_a_night(records: list[Record]) -> None:
    picture = pytest.importorskip("benchmarks.replay.picture", reason="no matplotlib")
    svg = picture.draw(records)
    assert svg == picture.draw(records)
    assert "<title" in svg
    assert "<desc" in svg
    assert "prefers-color-scheme: dark" in svg
    assert re.search(r"<text[^>]*>driftline: [\d.]+ kB</text>", svg)

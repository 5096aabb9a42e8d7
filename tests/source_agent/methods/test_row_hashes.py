"""Row hashes go out in pieces; the rows that are wanted come from memory, or are read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from driftline.errors import DatabaseRefused, LimitExceeded

from source_agent.methods import row_hashes
from source_agent.scan import batches
from source_agent.scan.batches import IdentifiedRows
from tests.harness.asked_source import AskedSource, asked_source, bag, kinds
from tests.harness.exchange_pair import Table

ROWS: Table = [(key, "a", None) for key in range(40)]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[AskedSource]:
    with asked_source(tmp_path, ROWS) as made:
        yield made


def test_a_mismatch_names_ranges_and_their_rows() -> None:
    differs = np.array([True, False, True] + [False] * 6 + [True])
    said = row_hashes.mismatch(differs, np.array([5, 0, (1 << 32) - 1])).mismatch
    bits = np.unpackbits(
        np.frombuffer(zstandard.decompress(said.bitmap), np.uint8), bitorder="little"
    )
    assert bits[:10].tolist() == differs.tolist()
    counts = np.frombuffer(zstandard.decompress(said.counts), "<u4")
    assert counts.tolist() == [5, 0, (1 << 32) - 1]
    assert said.last


def test_more_rows_in_a_range_than_four_bytes_count() -> None:
    with pytest.raises(LimitExceeded):
        row_hashes.mismatch(np.array([True]), np.array([1 << 32]))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_hashes_are_sent_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_hashes, "DIGESTS_PER_MESSAGE", 3)
    hashes = np.arange(count, dtype=np.uint64)
    *pieces, end = row_hashes.send_hashes(hashes)
    assert end.HasField("hashes_end")
    assert not end.hashes_end.too_many
    sizes = [len(piece.row_hashes.hashes) // 8 for piece in pieces]
    assert sum(sizes) == count
    assert all(1 <= size <= 3 for size in sizes)
    data = b"".join(piece.row_hashes.hashes for piece in pieces)
    assert np.frombuffer(data, "<u8").tolist() == hashes.tolist()


def found_in(source: AskedSource, rows: Table) -> IdentifiedRows:
    found = IdentifiedRows()
    for at in range(0, len(rows), 8):
        batch = source.batch(rows[at : at + 8])
        found.add(batch, np.zeros(len(batch.positions), np.int64))
    return found


@pytest.mark.parametrize("is_held", [True, False])
def test_wanted_rows_alone_are_shipped(
    source: AskedSource, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_held:
        monkeypatch.setattr(batches, "ROWS_HELD_BYTES", 0)
    found, scan = found_in(source, ROWS), source.scan()
    wanted = np.array([3, 8, 9, 39])
    replies = list(row_hashes.send_wanted(scan, found, wanted, total=40))
    assert source.shipped(replies) == bag([ROWS[at] for at in wanted])
    assert kinds(replies) == ["rows"]
    assert (source.tally.rows_read == 0) == is_held


def test_nothing_is_read_for_nothing(source: AskedSource) -> None:
    scan, none = source.scan(), np.zeros(0, np.int64)
    found = found_in(source, ROWS)
    assert not list(row_hashes.send_wanted(scan, found, none, total=40))
    assert source.tally.phase == "scan"


def test_a_row_that_is_not_there_any_more_is_refused(
    source: AskedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS_HELD_BYTES", 0)
    found, scan = found_in(source, [*ROWS[:39], (39, "other", None)]), source.scan()
    with pytest.raises(DatabaseRefused):
        list(row_hashes.send_wanted(scan, found, np.array([39]), total=40))

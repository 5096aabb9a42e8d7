"""The figures of the snapshot paper have their shape, and the generator knows what it changed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.files.contenders import by_hashing, by_merging, partition, sort_old, taken
from benchmarks.files.figures import (
    critical_distance,
    figure_2,
    figure_8,
    figures_9_to_11,
    missed,
)
from benchmarks.files.generator import RECORD_BYTES, Changed, make, snapshots
from warehouse_agent.differential.window import window

ROWS, AGING = 3000, 240  # 8 %, as in the paper


def test_the_generator_knows_what_it_changed(tmp_path: Path) -> None:
    changed = make(tmp_path, 2000, 0.05, Changed(0.1, 0.02, 0.03))
    old, new = snapshots(tmp_path)
    counts = window(old, new, lambda *_: None, secret=bytes(32))
    assert (counts.updates, counts.inserts, counts.deletes) == changed
    assert 0.03 < counts.distance < 0.07
    lines = (tmp_path / "old.csv").read_bytes().splitlines(keepends=True)
    assert {len(line) for line in lines[1:]} == {RECORD_BYTES}


@pytest.mark.slow
@pytest.mark.starts
def test_uncompressed_joins_find_all_changes_at_the_papers_cost(tmp_path: Path) -> None:
    changed = make(tmp_path, ROWS, 0.05, Changed(0.1, 0.02, 0.03))
    sort_old(tmp_path)
    partition(tmp_path, "old")
    size = (tmp_path / "new.csv").stat().st_size
    for run, files in ((by_merging, 5), (by_hashing, 4)):
        done = taken(run, tmp_path)
        assert done.answer == f"{sum(changed):,} changes"
        assert abs(done.io_bytes / size - files) < 0.05 * files


def test_figure_14_pairs_are_missed_beyond_a_critical_distance() -> None:
    found = [missed(ROWS, share, AGING).mended for share in (0.05, 0.3, 0.6)]
    assert found[0] == 0 < found[1] < found[2]


def test_figure_15_larger_files_bear_less_distance() -> None:
    small, large = critical_distance(ROWS // 4, AGING), critical_distance(ROWS, AGING)
    assert large < small


def test_figure_16_larger_buffers_miss_less() -> None:
    found = [missed(ROWS, 0.3, int(ROWS * part)).mended for part in (0.02, 0.04, 0.08, 0.2)]
    assert all(a > b for a, b in pairwise(found))
    assert found[-1] == 0


def test_the_formulas_are_printed() -> None:
    assert any(line.startswith("  32") and " 2401 " in line for line in figure_2())
    assert any("163,333 (50%)" in line for line in figure_8())
    assert sum(line.startswith("Figure") for line in figures_9_to_11()) == 3

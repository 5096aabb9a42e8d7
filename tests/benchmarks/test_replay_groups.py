"""The replay by groups, on a few commits: each finds what the curators recorded and saves bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay.groups import HISTORIES, line_of, replay
from tests.harness.histories import DATA, available


@pytest.mark.starts
@pytest.mark.parametrize("name", HISTORIES)
def test_a_few_commits_of_a_real_table(name: str, tmp_path: Path) -> None:
    if not available(name):
        pytest.skip(f"NO REAL TABLES, NOT TESTED: {DATA} is not there")
    found = list(replay(name, tmp_path, commits=3))
    assert len(found) == 3
    for benefit in found:
        assert benefit.changed > 0
        assert 0.5 * benefit.copied < benefit.saved < benefit.copied
        assert benefit.expected == pytest.approx(benefit.saved, abs=0.25 * benefit.copied)
    assert line_of(name, found).startswith(f"| {name} | 3 |")

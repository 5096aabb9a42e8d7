"""The benchmark of rows that are read again, at its smallest size: one scan against two."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.source import again


@pytest.mark.slow
@pytest.mark.parametrize("engine", again.ENGINES)
def test_one_scan_against_two(tmp_path: Path, engine: str) -> None:
    lines: list[str] = []
    with again.ENGINES[engine]() as server, closing(again.Bench(server, tmp_path, 0.002)) as bench:
        found = again.measure(bench, (0.0, 0.02), 1, lines.append)
    scans = {of: measured[0].scans for of, measured in found.items()}
    assert scans == {
        (0.0, "where they lie"): 1,
        (0.0, "keys first"): 1,
        (0.0, "second scan"): 1,
        (0.02, "where they lie"): 1,
        (0.02, "keys first"): 2,
        (0.02, "second scan"): 2,
    }
    assert all(one.agent_s > 0 and one.peak_mb > 1 for (one,) in found.values())
    assert lines[-1].endswith("x COPY, least of 1")

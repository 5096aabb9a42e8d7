"""Five readers that know nothing of Driftline see the source's columns, and its values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.reloads.readers import ENVIRONMENT, READERS, REQUIREMENTS
from tests.harness.pair import environment


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_five_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself compares columns and values; it ends well where all are equal."""
    monkeypatch.chdir(tmp_path)
    if (why := environments.missing(ENVIRONMENT, REQUIREMENTS)) is not None:
        pytest.skip(f"NO OTHER READERS, NOT TESTED: {why}")
    command = [sys.executable, "-m", "benchmarks.reloads.readers", "--scale", "0.002"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [line[0].strip("| ") for line in lines] == ["orders", "lineitem", "customer"]
    assert {line[-1].strip(" |") for line in lines} == {", ".join(READERS)}
    for line, most in zip(lines, (0.65, 0.55, 0.80), strict=True):
        assert 0.3 < float(line[4]) <= most

"""Tests of the answers of `refresh` where they cannot be printed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from warehouse_agent.cli.answers import ReportPrinter
from warehouse_agent.cli.progress import ProgressDisplay
from warehouse_agent.events import RefreshCommitted
from warehouse_agent.report import Report


def test_a_full_disk_stops_no_refresh_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each report is tried, so that a disk with space again gets the rest."""
    answers = ReportPrinter(ProgressDisplay(), as_json=True)
    with (
        contextlib.suppress(OSError),
        Path("/dev/full").open("w") as full,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", full)
        for name in ("a", "b"):
            answers(RefreshCommitted(Report(name)))
    # Not above: there the file, which cannot be closed, replaces whatever was raised.
    with pytest.raises(OSError, match="No space left"):
        answers.end()

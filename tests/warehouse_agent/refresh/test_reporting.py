"""Tests of what a report says after a pass that failed behind some of its tiles."""

from __future__ import annotations

from pathlib import Path

from driftline.rows.digests import Digest, Salt

from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings, PassSums, tiling
from warehouse_agent.refresh import reporting
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store
from warehouse_agent.tasks.difference import NoDifference, Outcome


def outcome(rows: int) -> Outcome:
    """Return what a tile of so many rows found."""
    return Outcome(
        NoDifference(),
        Method.RANGE,
        theirs=Digest(rows),
        as_of="2026-01-01T00:00:00Z",
        checked_at="2026-01-01T00:00:01Z",
        consistency="exact",
        changed=False,
        vouched=True,
        scans=0,
        rows_read=rows,
        round_trips=2,
    )


def test_tiles_of_this_attempt_are_added_and_earlier_ones_are_not(tmp_path: Path) -> None:
    """A tile that an earlier attempt finished took nothing now."""
    sums = PassSums(tiling([1, 10, 20, 30, 40], 40))
    tiles = Pass(Store(str(tmp_path)), "orders", PassSettings(10), Salt.fresh(), sums)
    tiles.outcomes[0], tiles.resumed_at = outcome(5), 1
    report = Report("orders", tiles=4, tiles_done=1, round_trips=1, source_rows_read=5)
    tiles.outcomes[1] = outcome(10)
    tiles.outcomes[2] = outcome(20)
    reporting.walked(report, tiles)
    assert report.tiles_done == 3
    assert (report.round_trips, report.source_rows_read) == (1 + 2 * 2, 5 + 10 + 20)


def test_how_it_was_compared_replaces_what_an_earlier_attempt_said() -> None:
    """Only what was spent adds up over attempts."""
    report = Report("orders", method="sketch", consistency="fuzzy", as_of="earlier")
    reporting.compared(report, outcome(5))
    assert (report.method, report.consistency) == ("range", "exact")
    assert report.as_of == "2026-01-01T00:00:00Z"

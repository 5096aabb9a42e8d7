"""Put the results of the steps of a refresh into its report.

The runner adds attempts, bytes and errors, and by `Report.note_published` the result of `commit`.
Seconds are measured where they are spent (`Job.phase`).
"""

from __future__ import annotations

from dataclasses import asdict

from driftline.relations.activity import to_json

from warehouse_agent.methods.registry import predicted
from warehouse_agent.methods.since import SinceSide
from warehouse_agent.planning.candidates import copy_bytes
from warehouse_agent.planning.choice import Method
from warehouse_agent.refresh import derivation
from warehouse_agent.refresh.auxiliary_table import Pass
from warehouse_agent.refresh.prepare import Prepared, PreparedWhole
from warehouse_agent.report import Report
from warehouse_agent.tasks.difference import NoDifference, Outcome, joined


def prepared(report: Report, p: Prepared) -> None:
    """Note the published version, its lost files, and the prediction."""
    base = p.base
    report.version = report.previous_version = base.version if base else None
    report.rows_total = base.rows if base else None
    report.repaired_files = len(base.lost) if base else 0
    report.repaired_rows = base.rows_lost if base else 0
    report.derived = derivation.summary(p.layout)
    if (allowance := p.known.allowance) is not None:
        report.allowed = allowance.describe(p.known.now) or None
    report.predicted = asdict(predicted(p.known, p.expected))
    if p.changes is not None:
        report.changes_expected = (p.changes.low, p.changes.median, p.changes.high)
    scope = p.known.scope
    report.tiles, report.tiles_done = scope.tiles, scope.tiles_done
    if report.resumed_at is None:  # later attempts find tiles that this command finished
        report.resumed_at = scope.tiles_done


def exchanged(report: Report, p: PreparedWhole, outcome: Outcome) -> None:
    """Note the result of one exchange, and its cost at the source."""
    compared(report, outcome)
    copied(report, p, outcome)
    report.marker = _marker(p, outcome)
    report.round_trips += outcome.round_trips
    report.source_scans, report.source_rows_read = outcome.scans, outcome.rows_read
    report.held_back_s, report.snapshot_s = outcome.held_back_s, outcome.snapshot_s
    if p.part is not None:
        report.rows_left = p.part.rest.count
        report.updates_left = round(p.part.updates_left, 2)


def _marker(p: PreparedWhole, outcome: Outcome) -> dict[str, object] | None:
    """Return how a marker was used, or why not; None: all rows are to be proven anyway."""
    state, used = p.known.marker, outcome.marker
    if state is None:
        return None
    why = (used.why if used is not None else "") or state.refused(p.known.now)
    if outcome.by_marker:
        why = ""
    elif not why and isinstance(p.ours, SinceSide):
        why = "more keys differ than a refresh by the marker finds cheaply"
    elif not why:
        why = "comparing all rows is as cheap"
    return {
        "used": outcome.by_marker,
        "why": why or None,
        "rows": used.rows if used is not None else 0,
        "keys_counted": used is not None and used.counted,
        "audited": used is not None and used.audited,
        "warnings": list(used.warnings) if used is not None else [],
    }


def walked(report: Report, tiles: Pass) -> None:
    """Note the tiles that this attempt finished, also if it failed after them."""
    report.tiles_done = len(tiles.outcomes)
    if new := list(tiles.outcomes.values())[tiles.resumed_at :]:
        spent = joined(new, NoDifference(), Method.RANGE, is_one_snapshot=False)
        report.round_trips += spent.round_trips
        report.source_scans += spent.scans
        report.source_rows_read += spent.rows_read
        report.held_back_s += spent.held_back_s
        report.snapshot_s = max(report.snapshot_s or 0.0, spent.snapshot_s)


def compared(report: Report, outcome: Outcome) -> None:
    """Note the method, the consistency and the instant of a comparison."""
    report.method, report.consistency = outcome.method.value, outcome.consistency
    report.as_of = outcome.as_of
    report.activity = None if outcome.activity is None else to_json(outcome.activity)


def copied(report: Report, p: Prepared, outcome: Outcome) -> None:
    """Note the bytes of a copy of all rows: those of a first load, else what one is expected to
    take."""
    is_load = p.base is None and outcome.is_copy
    expected = copy_bytes(p.known, outcome.theirs.count)
    report.copy_bytes = outcome.frame_bytes if is_load else expected

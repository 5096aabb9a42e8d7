"""Words for the state of a table, the same wherever it is shown: `status` and the report.

The most urgent state comes first in every list. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from driftline.errors import named

from warehouse_agent.history.alarms import MonitoringState
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.report import counted, span
from warehouse_agent.storage.staged_files import StagedRows

NOTHING_PUBLISHED: Final = "nothing published yet"
_URGENT_FIRST: Final = ("critical", "warning", "unknown", "ok")


def urgency(table: PublishedState) -> str:
    """Return the state of a table as monitoring has it; one that nobody judged is ok."""
    return (table.state or MonitoringState.OK).word


def urgent_first(shown: Sequence[PublishedState]) -> list[PublishedState]:
    """Return tables with the most urgent first."""
    return sorted(shown, key=lambda one: _URGENT_FIRST.index(urgency(one)))


def state_text(table: PublishedState, *, words: bool = False) -> str:
    """Return the state of a table in few words; `words`: also those of an error's code."""
    if (failed := table.failed) is not None:
        code = named(failed.code) if words else failed.code
        often = f" {failed.times:,}×" if failed.times > 1 else ""
        return f"failed{often}{', late' if table.late_s is not None else ''}: {code}"
    if table.version is None:
        staged = table.staged
        return NOTHING_PUBLISHED if staged is None else f"first load, {staged_text(staged)} staged"
    if table.stale is not None:
        return "behind its inputs"
    if table.damaged:
        return f"{counted(table.damaged, 'file')} damaged"
    if table.late_s is not None:
        return f"late: {short_span(table.late_s)}, limit {short_span(table.late_after_s or 0.0)}"
    if table.put_off_until is not None:
        return "ok, put off"
    if table.visible_version not in (None, table.version):
        return f"ok, readers: {table.visible_version}"
    return "ok"


def short_span(seconds: float) -> str:
    """Return a span of time in few letters: `3 h`, `12 min`."""
    number, _, unit = span(seconds).partition(" ")
    return f"{number} {'min' if unit.startswith('minute') else unit[0]}"


def proof_text(proof: str | None, consistency: str | None) -> str:
    """Return in words which rows a proof is about, and the consistency, if it is not exact."""
    said = "whole" if proof == "total" else proof or ""
    return said if consistency == "exact" else f"{said}, {consistency}"


def staged_text(staged: StagedRows) -> str:
    """Return how much of a first load is staged."""
    if staged.rows is None:
        return counted(staged.bytes, "byte")
    amount = counted(staged.rows, "row") if staged.share is None else f"{staged.share:.0%}"
    return f"up to {amount}" if staged.exchanges > 1 else amount  # some may be staged twice

"""The table of freshness, kept up to date: the rows of what a command refreshed, by its reports.

Nothing is read but the table itself: what a report says is what `status` would say afterwards. What
changes without a refresh, as lateness and damaged files, is not in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.history import alarms
from warehouse_agent.history.alarms import MonitoringState, TableFacts
from warehouse_agent.history.failures import Failure
from warehouse_agent.history.history_lines import moment
from warehouse_agent.monitoring.after_command import EndedCommand
from warehouse_agent.report import Report
from warehouse_agent.visible_versions import freshness_table
from warehouse_agent.visible_versions.freshness_table import FreshnessRow

NAME: Final = "freshness"


class FreshnessTeller:
    """Teller that commits the rows of what a command refreshed."""

    name = NAME

    def tell(self, ended: EndedCommand) -> None:
        """Commit them, and drop the rows of tables that are not configured any more.

        Raises:
            Locked, WarehouseUnavailable: as `freshness_table.replace`.
        """

        def change(known: Mapping[str, FreshnessRow]) -> Mapping[str, FreshnessRow]:
            return after(known, ended)

        if ended.reports:  # else nothing was due
            freshness_table.replace(ended.store, change)


def of(config: WarehouseConfig) -> FreshnessTeller | None:
    """Return the teller of a warehouse; None: its configuration asks for no table."""
    return FreshnessTeller() if config.freshness_table else None


def after(known: Mapping[str, FreshnessRow], ended: EndedCommand) -> dict[str, FreshnessRow]:
    """Return the rows after a command, by name; `known`: those before."""
    config = ended.config
    rows = {n: row for n, row in known.items() if n in config.fragments or n in config.views}
    for report in ended.reports:
        kind = _kind(config, report.name)
        is_put_off = report.put_off_until is not None
        if kind is not None and report.not_started is None and not is_put_off:
            before = rows.get(report.name) or FreshnessRow(report.name, kind)
            rows[report.name] = row_of(replace(before, kind=kind), report, ended.now)
    return rows


def row_of(before: FreshnessRow, report: Report, now: datetime) -> FreshnessRow:
    """Return the row of a table after a refresh.

    Args:
        now: with a time zone.
    """
    if (error := report.error) is not None:
        row = replace(
            before,
            version=report.version if report.version is not None else before.version,
            rows=report.rows_total if report.rows_total is not None else before.rows,
            last_failure_at=_moment(report.failed_at) or now,
            last_failure_code=str(error["code"]),
            failures=before.failures + 1,
        )
    else:
        row = replace(
            before,
            version=report.version,
            as_of=_moment(report.as_of),
            checked_at=_moment(report.checked_at),
            proof=report.proof,
            consistency=report.consistency,
            rows=report.rows_total,
            last_success_at=_moment(report.refreshed_at or report.checked_at) or now,
            failures=0,
        )
    return replace(row, state=_state(row, report).word)


def _state(row: FreshnessRow, report: Report) -> MonitoringState:
    """Return what monitoring makes of a table, as far as its last refresh says."""
    failure = None
    if (error := report.error) is not None:
        told = {name: str(error[name]) for name in ("code", "message", "where", "remedy")}
        failure = Failure(
            row.failures,
            None,
            report.failed_at,
            row.version,
            **told,
            safe_to_retry=bool(error["safe_to_retry"]),
            exit_code=int(error["exit_code"]),
            details={},
        )
    facts = TableFacts(is_published=row.version is not None, failure=failure, stale=report.stale)
    return alarms.worst([one.state for one in alarms.alarms(facts)] or [MonitoringState.OK])


def _kind(config: WarehouseConfig, name: str) -> str | None:
    """Return the kind of a table, as `status --json` has it; None: it is not configured."""
    if name in config.views:
        return "view"
    if (fragment := config.fragments.get(name)) is None:
        return None
    return "kept" if fragment.is_kept else "fragment"


def _moment(text: str | None) -> datetime | None:
    """Return a moment of a report in UTC; None: it has none, or none that can be."""
    with contextlib.suppress(ValueError, OverflowError):
        return None if text is None else moment(text).astimezone(UTC)
    return None

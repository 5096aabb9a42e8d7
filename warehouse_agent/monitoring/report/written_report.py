"""Write a report: read what is published and what happened, and make a page of each table.

What is read of a table is let go when its page is written; the index keeps a row of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from driftline.errors import DriftlineError

from warehouse_agent.columns import layout
from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history import command_records, refresh_history
from warehouse_agent.history.history_lines import DAMAGED
from warehouse_agent.history.totals import Totals
from warehouse_agent.inspection.published_state import PublishedState, reading
from warehouse_agent.monitoring.report import folder, pages
from warehouse_agent.monitoring.report.axes import moment_text
from warehouse_agent.monitoring.report.folder import INDEX, TABLES
from warehouse_agent.monitoring.report.index_rows import IndexRow, commands_of, row_of, unread
from warehouse_agent.monitoring.report.pages import ReportScope, SchemaChange
from warehouse_agent.monitoring.report.refresh_series import TableSeries, series_of
from warehouse_agent.refresh.schema_change import column_changes
from warehouse_agent.scheduler import due
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.timetable.decision import NEVER
from warehouse_agent.views.timings import longest_s

SCHEMAS_SHOWN = 10
WITH_ITS_TABLES, NOT_DUE, DUE_NOW = "with its tables", "never", "now"


@dataclass
class WrittenReport:
    """A report that was written.

    Attributes:
        index: its first page.
        rows: the tables, in the order of the configuration.
        errors: by table, of those that could not be read.
    """

    index: Path
    rows: list[IndexRow] = field(default_factory=list)
    errors: dict[str, DriftlineError] = field(default_factory=dict)
    totals: list[Totals] = field(default_factory=list)


def write(
    config: WarehouseConfig,
    chosen: Sequence[Fragment | View],
    scope: ReportScope,
    output: Path,
) -> WrittenReport:
    """Write a report of fragments and views into a folder.

    Raises:
        UsageError: the folder holds something else, or cannot be written.
        Locked: another command writes it.
        WarehouseUnavailable: the warehouse cannot be read.
    """
    store, report = Store.of(config), WrittenReport(output / INDEX)
    with folder.opened(output, private=scope.values) as place:
        records = command_records.current(store, scope.now.timestamp())
        place.begin(frozenset((INDEX, *(_page(one.name) for one in chosen))))
        with reading(config, chosen, scope.now, ask=False) as state:
            for one in chosen:
                try:
                    table = state(one)
                    history = refresh_history.read(store, one.name)
                except Exception as problem:
                    error = mistake(problem, one.name)
                    report.errors[one.name] = error
                    row, series = unread(one.name, _kind(one), error), TableSeries()
                    text = pages.table(scope, row, PublishedState(one.name), series, None, ())
                else:
                    series = series_of(history)
                    row = row_of(table, series, scope.now, _due(config, store, one, scope))
                    text = pages.table(
                        scope, row, table, series, _interval_s(config, one),
                        list(_schemas(store, one, series)),
                    )  # fmt: skip
                place.write(_page(one.name), text)
                report.rows.append(row)
                report.totals.append(series.whole)
        commands = commands_of(records)
        place.write(INDEX, pages.index(scope, report.rows, report.totals, commands))
        place.end()
    return report


def _page(name: str) -> str:
    return f"{TABLES}/{name}.html"


def _kind(one: Fragment | View) -> str:
    if isinstance(one, View):
        return "view"
    return "kept" if one.is_kept else "fragment"


def _interval_s(config: WarehouseConfig, one: Fragment | View) -> float | None:
    return longest_s(config, one) if isinstance(one, Fragment) else None


def _due(
    config: WarehouseConfig, store: Store, one: Fragment | View, scope: ReportScope
) -> str:  # fmt: skip
    """Return when a table is refreshed next, in words; empty if nothing can be decided."""
    if isinstance(one, View):
        return WITH_ITS_TABLES
    with contextlib.suppress(DriftlineError):
        entry = due.scheduled(config, store, one, scope.now.timestamp(), None, expects=False)
        if entry.decision.due:
            return DUE_NOW
        return NOT_DUE if entry.decision.at == NEVER else moment_text(entry.decision.at)
    return ""


def _schemas(
    store: Store, one: Fragment | View, series: TableSeries
) -> Iterator[SchemaChange]:  # fmt: skip
    """Yield the newest refreshes with which the columns of a table changed, the newest first."""
    found = [point for point in reversed(series.points) if point.has_other_columns]
    for point in found[:SCHEMAS_SHOWN]:
        changes: tuple[str, ...] = ()
        if isinstance(one, Fragment) and point.version:
            with contextlib.suppress(DriftlineError, *DAMAGED):
                changes = tuple(_changes(store, one.name, point.version))
        yield SchemaChange(point.at, point.version, changes)


def _changes(store: Store, name: str, version: int) -> Iterator[str]:
    """Yield the changes of columns with a version, a phrase for each."""
    entries = formats.entries(store, name, after=max(version - 2, 0) if version > 1 else None)
    bodies = {e.version: e.record.body for e in entries if e.record is not None}
    recipes = [layout.from_json(bodies[n]["layout"]).recipe for n in (version - 1, version)]
    yield from column_changes(*recipes)

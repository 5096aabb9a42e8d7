"""Write a report: read what is published and what happened, and make a page of each table.

What is read of a table is let go when its page is written; the index keeps a row of it.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from driftline.errors import DriftlineError

from warehouse_agent.columns import layout
from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.history import command_records, failures, refresh_history
from warehouse_agent.history.history_lines import DAMAGED
from warehouse_agent.history.totals import Totals
from warehouse_agent.inspection.published_state import PublishedState, full_disk, reading
from warehouse_agent.monitoring.report import folder, pages
from warehouse_agent.monitoring.report.axes import moment_text
from warehouse_agent.monitoring.report.folder import INDEX, TABLES
from warehouse_agent.monitoring.report.index_rows import IndexRow, commands_of, row_of, unread
from warehouse_agent.monitoring.report.pages import ReportScope, SchemaChange
from warehouse_agent.monitoring.report.refresh_series import TableSeries, series_of
from warehouse_agent.refresh.schema_change import column_changes
from warehouse_agent.scheduler.due import scheduled
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.timetable.decision import NEVER
from warehouse_agent.views.timings import longest_s

SCHEMAS_SHOWN = 10
LOT_TABLES = 32  # whose pages are made by one process, and begun before one is written
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
    report = WrittenReport(output / INDEX)
    with _no_search_for_cycles(), folder.opened(output, private=scope.values) as place:
        place.begin(frozenset((INDEX, *(_page(one.name) for one in chosen))))
        for made in _made(config, chosen, scope):
            place.write(_page(made.row.name), made.text)
            report.rows.append(made.row)
            report.totals.append(made.totals)
            if made.error is not None:
                report.errors[made.row.name] = made.error
        records = command_records.current(Store.of(config), scope.now.timestamp())
        text = pages.index(
            scope, report.rows, report.totals, commands_of(records), full_disk(config)
        )
        place.write(INDEX, text)
        place.end()
    return report


@contextlib.contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Let Python search for no cycles of objects, which takes a seventh of the time: what is read
    of a table has none, and is let go with its last reference."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _MadePage:
    """The page of a table, and what the index keeps of it; `error`: it could not be read."""

    row: IndexRow
    totals: Totals
    text: str
    error: DriftlineError | None = None


def _made(
    config: WarehouseConfig, chosen: Sequence[Fragment | View], scope: ReportScope
) -> Iterator[_MadePage]:
    """Yield the pages of tables in their order; those of many are made by several processes."""
    lots = [chosen[begin : begin + LOT_TABLES] for begin in range(0, len(chosen), LOT_TABLES)]
    processes = min(len(lots), os.cpu_count() or 1)
    if processes == 1 or not _may_fork():
        yield from chain.from_iterable(_lot(config, lot, scope) for lot in lots)
        return
    # Forked, so that what is imported is shared.
    with ProcessPoolExecutor(
        processes, get_context("fork"), initializer=_begin, initargs=(config, lots, scope)
    ) as pool:
        yield from chain.from_iterable(pool.map(_lot_of_this_process, range(len(lots))))


_given: list[tuple[WarehouseConfig, Sequence[Sequence[Fragment | View]], ReportScope]] = []


def _begin(
    config: WarehouseConfig, lots: Sequence[Sequence[Fragment | View]], scope: ReportScope
) -> None:
    """Keep in a process that makes pages what it was forked with."""
    _given.append((config, lots, scope))


def _lot_of_this_process(number: int) -> list[_MadePage]:
    config, lots, scope = _given[-1]
    return list(_lot(config, lots[number], scope))


def _may_fork() -> bool:
    """Return True if no thread may hold a lock that a forked process would wait for; those of
    Arrow's allocator let go of theirs."""
    tasks = Path("/proc/self/task")
    others = [task for task in tasks.iterdir() if int(task.name) != os.getpid()]
    return {(task / "comm").read_text().strip() for task in others} <= {"jemalloc_bg_thd"}


def _lot(
    config: WarehouseConfig, lot: Sequence[Fragment | View], scope: ReportScope
) -> Iterator[_MadePage]:
    """Yield the pages of some tables."""
    store = Store.of(config)
    with reading(config, lot, scope.now, ask=False) as state:
        for one in lot:
            source = _source(config, one)
            try:
                table = state(one)
                history = refresh_history.read(store, one.name)
                series, over = series_of(history), failures.recovered(history, scope.now)
                due = _due(config, store, one, scope, table.late_s)
                row = row_of(table, series, scope.now, due, over, source)
                schemas = list(_schemas(store, one, series))
                text = pages.table(scope, row, table, series, _interval_s(config, one), schemas)
            except Exception as problem:
                error = mistake(problem, one.name)
                row, series = unread(one.name, _kind(one), error, source), TableSeries()
                text = pages.table(scope, row, PublishedState(one.name), series, None, ())
                yield _MadePage(row, series.whole, text, error)
                continue
            yield _MadePage(row, series.whole, text)


def _page(name: str) -> str:
    return f"{TABLES}/{name}.html"


def _kind(one: Fragment | View) -> str:
    if isinstance(one, View):
        return "view"
    return "kept" if one.is_kept else "fragment"


def _source(config: WarehouseConfig, one: Fragment | View) -> str:
    """Return the name of a table's source, if the warehouse has several."""
    several = len({fragment.source.name for fragment in config.fragments.values()}) > 1
    return one.source.name if several and isinstance(one, Fragment) else ""


def _interval_s(config: WarehouseConfig, one: Fragment | View) -> float | None:
    return longest_s(config, one) if isinstance(one, Fragment) else None


def _due(
    config: WarehouseConfig,
    store: Store,
    one: Fragment | View,
    scope: ReportScope,
    late_s: float | None,
) -> str:
    """Return when a table is refreshed next, in words; empty if nothing can be decided.

    Args:
        late_s: seconds since a refresh went well, if it is late.
    """
    if isinstance(one, View):
        return WITH_ITS_TABLES
    with contextlib.suppress(DriftlineError):
        entry = scheduled(config, store, one, scope.now.timestamp(), None, expects=False)
        if entry.decision.due:
            asked_s = _interval_s(config, one)
            if late_s is None or asked_s is None:
                return DUE_NOW
            return f"overdue since {moment_text(scope.now.timestamp() - late_s + asked_s)}"
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

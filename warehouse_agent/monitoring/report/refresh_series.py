"""The past of one table as plain values, from its history of refreshes.

The newest refreshes are points; all of them are totals by day. A line that does not say something
has None there, and the chart that needs it skips the line. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from warehouse_agent.history import failures
from warehouse_agent.history.failures import Failure
from warehouse_agent.history.history_lines import (
    PredictedCost,
    RowCounts,
    SuccessLine,
    moment,
)
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.history.totals import OLDER, Totals

REFRESHES_SHOWN: Final = 72  # one by one: three days of every hour
DAYS_SHOWN: Final = 100
FAILURES_SHOWN: Final = 50
HEAT_DAYS: Final = 10  # of which the places of changes are shown apart
PARTS: Final = 32  # of the key's order, as `tasks.changed_places` counts them
_DAY: Final = len("2026-01-31")


@dataclass(frozen=True, slots=True)
class RefreshPoint:
    """A refresh that went well. Times are in seconds since 1970.

    Attributes:
        at: when it had compared; `when` says the same to the minute, in UTC.
        age_before_s, age_s: of the published data directly before it and after it; None: not known.
        floor: bytes that the changed rows alone take, at the price of a copy for each row.
        rows_read, scans: by the source; `total`: rows that the table had then.
        why: why a view was computed in its way.
    """

    at: float
    when: str
    age_before_s: float | None
    age_s: float | None
    version: int | None
    rows: RowCounts | None
    expected: tuple[int, int, int] | None
    moved: int | None
    copied: int | None
    floor: float | None
    seconds: float | None
    held_back_s: float | None
    phases: Mapping[str, float]
    rows_read: int | None
    scans: int | None
    total: int | None
    method: str | None
    why: str | None
    predicted: PredictedCost | None
    retried: tuple[str, ...]
    is_load: bool
    has_other_columns: bool

    @property
    def changed(self) -> int | None:
        """Return the rows that changed; None: not known, or they were loaded."""
        return None if self.rows is None or self.is_load else self.rows.changed

    @property
    def is_as_forecast(self) -> bool:
        """Return True if the changed rows lie within the forecast, or there was none."""
        if self.expected is None:
            return True
        return self.expected[0] <= (self.changed or 0) <= self.expected[2]


@dataclass(frozen=True, slots=True)
class TableSeries:
    """The past of a table.

    Attributes:
        points: the newest REFRESHES_SHOWN refreshes that went well, the oldest first.
        failed: refreshes that failed, those of one cause together, the newest first.
        failed_at: when each of them failed, in seconds since 1970.
        days: totals by day, the oldest first, of at most DAYS_SHOWN.
        months: totals by month of older days, and of all that is older; the oldest first.
        whole: totals of all refreshes.
        since: the first day, or month, that is known; None: there is none.
    """

    points: tuple[RefreshPoint, ...] = ()
    failed: tuple[Failure, ...] = ()
    failed_at: tuple[float, ...] = ()
    days: tuple[tuple[str, Totals], ...] = ()
    months: tuple[tuple[str, Totals], ...] = ()
    whole: Totals = field(default_factory=Totals)
    since: str | None = None

    @property
    def heat(self) -> list[tuple[str, list[int]]]:
        """Return changed rows by part of the key's order: of all refreshes, then of the newest
        days with such counts; empty if there is none."""
        days = [(name, _parts(one)) for name, one in reversed(self.days) if any(_parts(one))]
        whole = _parts(self.whole)
        return [("all refreshes", whole), *days[:HEAT_DAYS]] if any(whole) else []

    @property
    def columns(self) -> list[tuple[str, int]]:
        """Return columns and the updated rows in which each changed, the most first."""
        return sorted(self.whole.columns.items(), key=lambda one: (-one[1], one[0]))

    @property
    def retried(self) -> list[RefreshPoint]:
        """Return the refreshes that went well after attempts that failed, the newest first."""
        return [point for point in reversed(self.points) if point.retried]


def series_of(history: RefreshHistory) -> TableSeries:
    """Return the past of a table from its history, which was read whole."""
    by_day = history.by_day
    days = sorted((name, one) for name, one in by_day.by.items() if len(name) == _DAY)
    months = sorted((name, one) for name, one in by_day.by.items() if len(name) < _DAY)
    months.sort(key=lambda one: one[0] != OLDER)
    failed = list(islice(failures.kept(history), FAILURES_SHOWN))
    points = list(islice(_points(history), REFRESHES_SHOWN))
    points.sort(key=lambda point: point.at)  # a clock may have gone back
    first = points[0].at if points else float("-inf")
    at = (line.at for line in history.lines if not isinstance(line, SuccessLine))
    failed_at = sorted(one.timestamp() for one in at if one is not None)
    return TableSeries(
        tuple(points),
        tuple(failed),
        tuple(one for one in failed_at if one >= first)[-REFRESHES_SHOWN:],
        tuple(days[-DAYS_SHOWN:]),
        tuple(months + days[:-DAYS_SHOWN]),
        by_day.whole,
        by_day.since,
    )


def _points(history: RefreshHistory) -> Iterator[RefreshPoint]:
    """Yield refreshes that went well and say when, the newest first."""
    later = None
    for line in history.successes:
        if line.at is None:
            continue
        if later is not None:
            yield _point(later, line)
        later = line
    if later is not None:
        yield _point(later, None)


def _point(line: SuccessLine, before: SuccessLine | None) -> RefreshPoint:
    assert line.at is not None
    spent, rows = line.spent, line.rows
    floor = None
    if spent.copied is not None and rows is not None and line.total and not line.is_load:
        floor = spent.copied / line.total * (rows.inserted + rows.updated)
    return RefreshPoint(
        at=line.at.timestamp(),
        when=f"{line.at:%Y-%m-%d %H:%M}",
        age_before_s=None if before is None else _age_s(before.as_of, line.at),
        age_s=_age_s(line.as_of, line.at),
        version=line.version,
        rows=rows,
        expected=line.expected if line.counts_changes else None,
        moved=spent.bytes,
        copied=spent.copied,
        floor=floor,
        seconds=spent.seconds,
        held_back_s=spent.held_back_s,
        phases=spent.phases,
        rows_read=spent.rows_read,
        scans=spent.scans,
        total=line.total,
        method=line.method,
        why=line.why,
        predicted=line.predicted,
        retried=line.retried,
        is_load=line.is_load,
        has_other_columns=not line.counts_changes,
    )


def _age_s(as_of: str | None, at: datetime) -> float | None:
    """Return the age of data at a moment; 0 if the source's clock is ahead; None: not known."""
    if as_of is None:
        return None
    try:
        return max((at - moment(as_of).astimezone(UTC)).total_seconds(), 0.0)
    except (ValueError, OverflowError):
        return None


def _parts(totals: Totals) -> list[int]:
    return [totals.parts.get(str(part), 0) for part in range(PARTS)]

"""The history of refreshes of a fragment or a view: its newest lines, and totals of all older ones.

`_driftline/runs/NAME.jsonl` has one line for each refresh, also for failed ones. A file that has
LINES_BYTES_MAX keeps its newest KEPT_BYTES of lines whole; the older ones are added to the totals
in its first line (`totals`). So what an append writes anew on object stores is bounded as well.

A history is read once, from its end, as far as its reader says, and then is a value. The next
refresh decides from it (the table ω− of Lu, Liu and Hyland); if it is lost, that one costs more,
and its result is the same. The commit of a version holds its line too: if the command was killed
before it wrote the line, the next one does (`complete`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from typing import Any, Final

from driftline.errors import WarehouseUnavailable

from warehouse_agent.events import Event, RefreshCommitted, RefreshFailed
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.history.history_lines import (
    DAMAGED,
    FailureLine,
    HistoryLine,
    SuccessLine,
    of_report,
    parse,
)
from warehouse_agent.history.totals import OlderTotals, Totals
from warehouse_agent.planning.change_forecast import (
    HISTORY_MAX,
    DayOfChanges,
    EarlierRefresh,
    is_pause,
)
from warehouse_agent.report import utc_at
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Version
from warehouse_agent.timetable.retry import COUNTED, FailureStreak

KEPT_BYTES: Final = 512 << 10  # of lines: some 300 refreshes; forecasts look at 200
LINES_BYTES_MAX: Final = 768 << 10  # of a file: lines are added up once in some 100 refreshes
EARLIER_MAX: Final = HISTORY_MAX + 1  # that a forecast needs: each but the first ends an interval

Enough = Callable[[HistoryLine], bool]  # told of each line, the newest first; True: no older ones


@dataclass(frozen=True, slots=True)
class RefreshHistory:
    """Earlier refreshes of a fragment or a view.

    Attributes:
        lines: the newest first, as far as they were read.
        is_whole: all lines that are kept were read.
        folded: totals of older lines; only of a history that was read whole.
    """

    lines: tuple[HistoryLine, ...] = ()
    is_whole: bool = True
    folded: OlderTotals = field(default_factory=OlderTotals)

    def plus(self, line: HistoryLine) -> RefreshHistory:
        """Return the history with one line more."""
        return replace(self, lines=(line, *self.lines))

    def with_newest(self, newest: Version | None) -> RefreshHistory:
        """Return the history with the line of the newest version, also if the command that
        published it was killed before it wrote the line; its commit holds it."""
        report = newest.record.report if newest else None
        # A report of another version, copied with its record, is none of this one.
        if newest is None or report is None or report.get("version") != newest.version:
            return self
        line = _published(report)
        return self if line is None or not self.lacks(line) else self.plus(line)

    @property
    def totals(self) -> Totals:
        """Return the totals of all lines, of a history that was read whole."""
        return self.by_day.whole

    @property
    def by_day(self) -> OlderTotals:
        """Return the totals of all lines by day, of a history that was read whole."""
        return self.folded.with_lines(self.lines)

    @property
    def successes(self) -> Iterator[SuccessLine]:
        """Yield the refreshes that went well, the newest first."""
        return (line for line in self.lines if isinstance(line, SuccessLine))

    @property
    def since_load(self) -> Iterator[SuccessLine]:
        """Yield the refreshes that went well, the newest first, down to the last load."""
        for line in self.successes:
            yield line
            if line.is_load:
                return

    @property
    def earlier(self) -> list[EarlierRefresh]:
        """Return the refreshes of all rows since the last load, the load first."""
        found = [one for line in self.since_load if (one := line.as_earlier) is not None]
        return found[::-1]

    @property
    def days(self) -> list[DayOfChanges]:
        """Return what refreshes found by day since the last load, oldest first; none of a history
        that was not read down to its totals."""
        if not self.is_whole or not self.folded.by:
            return []
        return self.by_day.days

    @property
    def refreshed_at(self) -> datetime | None:
        """Return when the last successful refresh, or part of one, had compared; None: never."""
        return next((line.at for line in self.successes if line.at is not None), None)

    @property
    def tried_at(self) -> str | None:
        """Return when the newest refresh ended, well or not, ISO 8601 in UTC; None: not known."""
        at = next((line.at for line in self.lines if line.at is not None), None)
        return None if at is None else utc_at(at.timestamp())

    @property
    def put_off_until(self) -> float | None:
        """Return the moment before which the source reads nothing, as it said at the last refresh,
        in seconds since 1970; None: it did not."""
        match self.lines[:1]:
            case [FailureLine(put_off_until=datetime() as until)]:
                return until.timestamp()
        return None

    @property
    def failed(self) -> FailureStreak | None:
        """Return the refreshes that failed since the last that went well, or that a source put off;
        None: the last one did."""
        newest, times = None, 0
        for line in self.lines:
            if isinstance(line, SuccessLine) or line.is_put_off or times == COUNTED:
                break
            if line.at is not None and line.code and line.exit_code is not None:
                one = FailureStreak(1, line.at.timestamp(), line.code, line.exit_code)
                newest, times = newest or one, times + 1
        return None if newest is None else replace(newest, times=times)

    @property
    def rows_total(self) -> int:
        """Return the rows that the last successful refresh left; 0: not known."""
        return next((line.total for line in self.successes if line.total is not None), 0)

    def durations_s(self, most: int) -> list[float]:
        """Return the seconds that the last successful refreshes since a load took, the newest
        first; if there is none since, those of the load."""
        timed = [
            (line.spent.seconds, line.is_load)
            for line in self.since_load
            if line.spent.seconds is not None
        ]
        later = [seconds for seconds, is_load in timed if not is_load]
        return (later or [seconds for seconds, _ in timed])[:most]

    def phases_s(self, most: int) -> list[Mapping[str, float]]:
        """Return the seconds of each phase of the refreshes of `durations_s`."""
        timed = [(line.spent.phases, line.is_load) for line in self.since_load if line.spent.phases]
        later = [phases for phases, is_load in timed if not is_load]
        return (later or [phases for phases, _ in timed])[:most]

    @property
    def held_back_s(self) -> tuple[float, float] | None:
        """Return for how many seconds the source held the last successful refresh back, and all
        that it took; None: there was none."""
        for line in self.successes:
            if line.spent.held_back_s is not None and line.spent.seconds is not None:
                return line.spent.held_back_s, line.spent.seconds
        return None

    def lacks(self, version: SuccessLine) -> bool:
        """Return True if there is no line of the refresh that published the newest version, and
        never was one.

        Refreshes that found this version equal to its source say that the line was written, though
        it may be older than what is kept: each of them would have written it. The version may have
        the number of one in an earlier table of the same name.
        """
        is_followed = has_others = False
        for line in self.successes:
            if line.identity == version.identity:
                return False
            if line.version == line.previous_version == version.version:
                is_followed |= not has_others
            elif is_followed:
                return line.version == version.version
            else:
                has_others = True
        return not is_followed


def read(store: Store, name: str, enough: Enough | None = None) -> RefreshHistory:
    """Read a history from its end.

    Args:
        enough: says where to stop; None: read all.

    Raises:
        WarehouseUnavailable: it cannot be read.
    """
    lines, folded = list[HistoryLine](), OlderTotals()
    for line in store.lines_backwards(*_place(name)):
        if (parsed := parse(line)) is not None:
            lines.append(parsed)
            if enough is not None and enough(parsed):
                return RefreshHistory(tuple(lines), is_whole=False)
        elif (totals := OlderTotals.from_line(line)) is not None:
            folded = folded.merged(totals)
    return RefreshHistory(tuple(lines), folded=folded)


def earlier_refreshes(most: int | None = EARLIER_MAX) -> Enough:
    """Read until a load, or that many refreshes of all rows."""
    return _first(most, lambda line: line.as_earlier is not None)


def for_forecast(now: datetime) -> Enough:
    """Read until a load, or as many refreshes of all rows as a forecast looks at; but down to the
    totals of days if it needs these, after a pause."""
    times = list[datetime]()

    def enough(line: HistoryLine) -> bool:
        if not isinstance(line, SuccessLine):
            return False
        if line.as_earlier is not None and line.at is not None:
            times.append(line.at)
        if line.is_load or len(times) != EARLIER_MAX:
            return line.is_load
        intervals_s = ((after - before).total_seconds() for after, before in pairwise(times))
        return not is_pause(intervals_s, (now - times[0]).total_seconds())

    return enough


def refreshes(most: int) -> Enough:
    """Read until a load, or that many refreshes that went well and say what they took."""
    return _first(most, lambda line: line.at is not None and line.spent.seconds is not None)


def _first(most: int | None, counts: Callable[[SuccessLine], bool]) -> Enough:
    seen = 0

    def enough(line: HistoryLine) -> bool:
        nonlocal seen
        if not isinstance(line, SuccessLine):
            return False
        seen += counts(line)
        return line.is_load or seen == most

    return enough


def append(store: Store, name: str, line: str) -> None:
    """Append a line to a history; add old lines up if there are many.

    Raises:
        WarehouseUnavailable: the history cannot be written.
    """
    store.append_line(line, *_place(name), bytes_max=LINES_BYTES_MAX, shorten=shortened)


def shortened(lines: bytes) -> bytes:
    """Return a history whose older lines are added up; damaged and foreign ones go."""
    older, newer = lines[: -KEPT_BYTES or None], lines[-KEPT_BYTES:]
    cut = len(older) + len(newer.partition(b"\n")[0]) + 1
    folded = reduce(_plus, lines[:cut].split(b"\n"), OlderTotals()).bounded()
    return folded.to_line() + b"\n" + lines[cut:]


def _plus(known: OlderTotals, line: bytes) -> OlderTotals:
    if (parsed := parse(line)) is not None:
        return known.plus(parsed)
    return known if (totals := OlderTotals.from_line(line)) is None else known.merged(totals)


def complete(
    store: Store, name: str, known: RefreshHistory, newest: Version | None
) -> RefreshHistory:
    """Write the line of the newest version if the command that published it could not.

    Hold the fragment's lock. A line that cannot be written now is written by a later command.

    Returns:
        The history with it.
    """
    completed = known.with_newest(newest)
    if newest is None or completed is known:
        return known
    with contextlib.suppress(WarehouseUnavailable):
        append(store, name, json.dumps(newest.record.report))
        return completed
    return known


def _published(report: Mapping[str, Any]) -> SuccessLine | None:
    with contextlib.suppress(*DAMAGED):
        line = of_report(report)
        return line if isinstance(line, SuccessLine) else None
    return None


def _place(name: str) -> tuple[str, str, str]:
    return PRIVATE, "runs", f"{name}.jsonl"


@dataclass(frozen=True, slots=True)
class Histories:
    """The histories of the fragments of one command, each read once while its lock is held.

    One is kept from the begin of its fragment's turn to the end, and what the turn appends is in
    it. Nobody else appends what went well meanwhile, on a disk; on storage without locks another
    command may, and what it appends is seen by the next attempt.
    """

    _kept: dict[str, RefreshHistory] = field(default_factory=dict)

    def of(self, store: Store, name: str) -> RefreshHistory:
        """Return the history of a fragment whose lock is held, as far as a refresh needs it.

        Raises:
            WarehouseUnavailable: it cannot be read.
        """
        if name not in self._kept:
            self._kept[name] = read(store, name, for_forecast(datetime.now(UTC)))
        return self._kept[name]

    def begin(self, store: Store, name: str) -> None:
        """Begin an attempt. Where storage has no locks, another command may have appended what went
        well since the attempt before, so its history is read again."""
        if not store.has_locks:
            self._kept.pop(name, None)

    def known(self, name: str) -> RefreshHistory | None:
        """Return the history of a fragment whose turn has begun; None: it has not, or is over."""
        return self._kept.get(name)

    def completed(self, store: Store, name: str, newest: Version | None) -> RefreshHistory:
        """Return the history of a fragment whose lock is held, with the line of its newest version.

        Raises:
            WarehouseUnavailable: it cannot be read.
        """
        self._kept[name] = complete(store, name, self.of(store, name), newest)
        return self._kept[name]

    def append(self, store: Store, name: str, line: str) -> None:
        """Append a line, also to the history of a fragment that is locked by another command.

        Raises:
            WarehouseUnavailable: the history cannot be written.
        """
        append(store, name, line)
        parsed, known = parse(line.encode()), self._kept.get(name)
        if parsed is not None and known is not None:
            self._kept[name] = known.plus(parsed)

    def over(self, name: str) -> RefreshHistory | None:
        """Forget the history of a fragment whose turn is over; return it."""
        return self._kept.pop(name, None)


@dataclass(frozen=True, slots=True)
class HistoryListener:
    """A listener that appends each finished report to its fragment's history of refreshes."""

    store: Store
    histories: Histories = field(default_factory=Histories)

    def __call__(self, event: Event) -> None:
        """Append the report of a fragment that is done, with its requests; ignore other events.

        Raises:
            WarehouseUnavailable: the history cannot be written.
        """
        if not isinstance(event, RefreshCommitted | RefreshFailed):
            return
        event.report.requests = self.store.requests(event.report.name)
        WarehouseFailpoint.HISTORY_WRITING.reach()
        self.histories.append(self.store, event.report.name, event.report.to_json())
        if isinstance(event, RefreshFailed):
            self.histories.over(event.report.name)
        WarehouseFailpoint.HISTORY_WRITTEN.reach()

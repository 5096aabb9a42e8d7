"""Totals of refreshes by day: what is kept of lines of a history that are too old to be kept whole.

They are the first line of the history itself, so one write moves lines into its totals: whatever is
killed, and however many commands do it at once, each line is a line or in the totals, never both.
Rejected: a file of its own. Two writes need a mark that says up to where lines were counted, and on
storage without locks two commands could each write one of the two files.

The newest DAYS_MAX days are kept apart; older ones are added up by month, for MONTHS_MAX months;
what is older still, and what does not say when it was, is one sum. Amounts are added exactly.
Quantiles are those of counts in bins whose limits grow by BIN: they err by BIN ** 0.5 - 1 at most,
9 %. Pure.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, date
from functools import reduce
from typing import Any, Final

from warehouse_agent.history.history_lines import DAMAGED, FailureLine, HistoryLine, SuccessLine
from warehouse_agent.json_values import GREATEST
from warehouse_agent.planning.change_forecast import DayOfChanges
from warehouse_agent.report import bytes_text, counted, is_held_back_for_long, span

DAYS_MAX: Final = 100
MONTHS_MAX: Final = 120
TOTALS_BYTES_MAX: Final = 128 << 10  # of their JSON; days are added up by month sooner if need be
BIN: Final = 2**0.25  # the ratio of the limits of a bin
_BINS_MAX: Final = 500  # either side of 1: beyond any amount that a line can have
COLUMNS_MAX: Final = 16  # whose changes are kept
OLDER: Final = "older"  # the name of the sum of all that is in no month
_KEY: Final = "folded"  # of the line
_DAY, _MONTH = len("2026-01-31"), len("2026-01")


@dataclass(frozen=True, slots=True)
class Bins:
    """Counts of amounts in bins.

    Attributes:
        zeros: amounts of 0.
        counts: of amounts from BIN ** n to BIN ** (n + 1), by n.
    """

    zeros: int = 0
    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, amount: float | None) -> Bins:
        """Return the count of one amount; of none if it is not known."""
        return _counted_bins({_bin(amount): 1})

    @property
    def number(self) -> int:
        """Return the number of amounts."""
        return self.zeros + sum(self.counts.values())

    def plus(self, other: Bins) -> Bins:
        """Return the counts of both."""
        counts = dict(self.counts)
        for n, count in other.counts.items():
            counts[n] = counts.get(n, 0) + count
        return Bins(self.zeros + other.zeros, counts)

    def quantile(self, share: float) -> float | None:
        """Return about the amount that is not exceeded by a share of all; None: there is none."""
        left, limit = share * self.number - self.zeros, 0
        if left <= 0:
            return 0.0 if self.number else None
        for limit, count in sorted(self.counts.items()):  # noqa: B007 - used below
            left -= count
            if left <= 0:
                break
        return float(BIN ** (limit + 0.5))

    def to_json(self) -> dict[str, int]:
        """Return what `from_json` reads."""
        zeros = {"0 exactly": self.zeros} if self.zeros else {}
        return zeros | {str(n): count for n, count in sorted(self.counts.items())}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Bins:
        """Return what `to_json` wrote. Raises ValueError, or another of DAMAGED."""
        counts = {int(n): _count(count) for n, count in body.items() if n != "0 exactly"}
        if any(abs(n) > _BINS_MAX for n in counts):
            raise ValueError(body)
        return cls(_count(body.get("0 exactly", 0)), counts)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over refreshes: their results and their cost.

    Attributes:
        refreshes: that went well, first loads among them.
        loads, loaded: first loads, and the rows that they inserted.
        put_off: that their source put off, such as outside hours of its DBA.
        failed: by the code of the error.
        inserted, updated, deleted: rows, without those of loads.
        sent, received, seconds, held_back_s: of all refreshes, as in `history_lines.RefreshCost`.
        copied, moved_beside: bytes that copies would have taken, where that is known, and bytes
            that these refreshes moved.
        read_in: refreshes, failed ones too, of which it is known what the source read.
        rows_read, scans: rows that the source read in these, and its scans.
        requests: to a bucket, where they were counted.
        foretold, in_band: refreshes whose changes were forecast; of these those within the band.
        error: changed rows over those of the forecast's median, both with one row more.
        phases: seconds, by phase.
        compared, columns: updated rows whose columns were compared; those that changed in a column.
        parts: changed rows, by the number of the part of the key's order.
        took_s, moved, changed: seconds, bytes in both directions and changed rows of a refresh that
            went well and was no load.
    """

    refreshes: int = 0
    loads: int = 0
    loaded: int = 0
    put_off: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    held_back_s: float = 0.0
    took_s: Bins = field(default_factory=Bins)
    moved: Bins = field(default_factory=Bins)
    changed: Bins = field(default_factory=Bins)
    copied: int = 0
    moved_beside: int = 0
    read_in: int = 0
    rows_read: int = 0
    scans: int = 0
    foretold: int = 0
    in_band: int = 0
    compared: int = 0
    error: Bins = field(default_factory=Bins)
    phases: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    requests: int = 0

    @classmethod
    def of(cls, *lines: HistoryLine) -> Totals:
        """Return the totals of lines; what is damaged of one counts as 0."""
        sums = _Sums()
        for line in lines:
            sums.add(line)
        return sums.totals

    @property
    def attempts(self) -> int:
        """Return the number of lines that are in it."""
        return self.refreshes + self.put_off + sum(self.failed.values())

    def plus(self, other: Totals) -> Totals:
        """Return the totals of both."""
        return Totals(
            self.refreshes + other.refreshes,
            self.loads + other.loads,
            self.loaded + other.loaded,
            self.put_off + other.put_off,
            dict(Counter(self.failed) + Counter(other.failed)),
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.sent + other.sent,
            self.received + other.received,
            self.seconds + other.seconds,
            self.held_back_s + other.held_back_s,
            self.took_s.plus(other.took_s),
            self.moved.plus(other.moved),
            self.changed.plus(other.changed),
            self.copied + other.copied,
            self.moved_beside + other.moved_beside,
            self.read_in + other.read_in,
            self.rows_read + other.rows_read,
            self.scans + other.scans,
            self.foretold + other.foretold,
            self.in_band + other.in_band,
            self.compared + other.compared,
            self.error.plus(other.error),
            _added(self.phases, other.phases),
            _most(_added(self.columns, other.columns)),
            _added(self.parts, other.parts),
            self.requests + other.requests,
        )

    def text(self, whole_reads: float | None = None) -> str:
        """Return the totals in words: what happened, what it saved, what it cost the source.

        Args:
            whole_reads: the rows that the source read, in reads of whole tables; None: not known.
        """
        said = (
            f"{self.refreshes:,} refreshes went well, {sum(self.failed.values()):,} failed;"
            f" rows: {self.inserted:,} inserted, {self.updated:,} updated,"
            f" {self.deleted:,} deleted;"
            f" {bytes_text(self.sent + self.received)} in {span(self.seconds)}"
        )
        if self.copied:
            said += f"; saved {saving(self.moved_beside, self.copied)}: moved"
            said += f" {bytes_text(self.moved_beside)}, copies {bytes_text(self.copied)}"
        if self.rows_read:
            known = (
                "" if self.read_in >= self.attempts else f" (known of {self.read_in:,} refreshes)"
            )
            said += f"; cost the source{known}: {counted(self.rows_read, 'row')} read in"
            said += f" {counted(self.scans, 'scan')}"
            if whole_reads is not None and self.read_in:
                said += f", {reads_text(whole_reads / self.read_in)} a refresh"
            if is_held_back_for_long(self.held_back_s):
                said += f", held back for {span(self.held_back_s)}"
        if self.requests:
            said += f"; {counted(self.requests, 'request')} to the bucket"
        return said

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, without zeros."""
        body = {one.name: getattr(self, one.name) for one in fields(self)}
        body |= {name: round(body[name], 3) for name in _SECONDS}
        body |= {name: body[name].to_json() for name in _BINS}
        body["phases"] = {name: round(one, 3) for name, one in self.phases.items()}
        return {name: value for name, value in body.items() if value}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Totals:
        """Return what `to_json` wrote. Raises ValueError, or another of DAMAGED."""
        values: dict[str, Any] = {name: _count(body.get(name, 0)) for name in _COUNTS}
        values |= {name: Bins.from_json(body.get(name, {})) for name in _BINS}
        values |= {name: float(body.get(name, 0.0)) for name in _SECONDS}
        if not all(0 <= values[name] < math.inf for name in _SECONDS):
            raise ValueError(body)
        for name in _BY_NAME:
            values[name] = {str(key): _count(one) for key, one in body.get(name, {}).items()}
        phases = {str(name): float(one) for name, one in body.get("phases", {}).items()}
        if not all(0 <= one < math.inf for one in phases.values()):
            raise ValueError(body)
        return cls(**values, phases=phases)


_SECONDS: Final = ("seconds", "held_back_s")
_BINS: Final = ("took_s", "moved", "changed", "error")
_BY_NAME: Final = ("failed", "columns", "parts")
_COUNTS: Final = tuple(one.name for one in fields(Totals) if one.type == "int")


@dataclass(slots=True)
class _Sums:
    """Sums by the names of attributes of `Totals`, while lines are added up."""

    refreshes: int = 0
    loads: int = 0
    loaded: int = 0
    put_off: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    sent: int = 0
    received: int = 0
    copied: int = 0
    moved_beside: int = 0
    read_in: int = 0
    rows_read: int = 0
    scans: int = 0
    foretold: int = 0
    in_band: int = 0
    compared: int = 0
    seconds: float = 0.0
    held_back_s: float = 0.0
    took_s: dict[int | None, int] = field(default_factory=dict)
    moved: dict[int | None, int] = field(default_factory=dict)
    changed: dict[int | None, int] = field(default_factory=dict)
    error: dict[int | None, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    requests: int = 0

    def add(self, line: HistoryLine) -> None:
        spent = line.spent
        if spent.copied is not None and (moved := spent.bytes) is not None:
            self.copied += spent.copied
            self.moved_beside += moved
        if spent.rows_read is not None:
            self.read_in += 1
            self.rows_read += spent.rows_read
            self.scans += spent.scans or 0
        self.requests += sum((spent.requests or {}).values())
        self.sent += spent.sent or 0
        self.received += spent.received or 0
        self.seconds += spent.seconds or 0.0
        self.held_back_s += spent.held_back_s or 0.0
        for name, seconds in spent.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds
        if isinstance(line, FailureLine):
            if line.is_put_off:
                self.put_off += 1
            else:
                self.failed[line.code] = self.failed.get(line.code, 0) + 1
            return
        self.refreshes += 1
        if line.is_load:
            self.loads += 1
            self.loaded += line.rows.inserted if line.rows else 0
        else:
            self._add_changes(line)

    def _add_changes(self, line: SuccessLine) -> None:
        """Add what a refresh that was no load took, and what it says of its changes."""
        _count_in(self.took_s, line.spent.seconds)
        _count_in(self.moved, line.spent.bytes)
        if (rows := line.rows) is not None:
            changed = rows.changed
            self.inserted += rows.inserted
            self.updated += rows.updated
            self.deleted += rows.deleted
            _count_in(self.changed, changed)
            if line.expected is not None and line.counts_changes:
                low, median, high = line.expected
                self.foretold += 1
                self.in_band += low <= changed <= high
                _count_in(self.error, (changed + 1) / (median + 1))
        if (places := line.changed) is not None:
            self.compared += places.compared
            for name, number in places.columns.items():
                self.columns[name] = self.columns.get(name, 0) + number
            for part, number in enumerate(places.parts):
                if number:
                    self.parts[part] = self.parts.get(part, 0) + number

    @property
    def totals(self) -> Totals:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values |= {name: _counted_bins(values[name]) for name in _BINS}
        values["columns"] = _most(self.columns)
        values["parts"] = {str(part): number for part, number in self.parts.items()}
        return Totals(**values)


def saving(moved: int, copied: int) -> str:
    """Return the share of bytes that was saved, with as many digits as it is sure of."""
    share = 100 * (1 - moved / copied)
    return "nothing" if share <= 0 else f"{share:.1f} %" if share < 99.9 else f"{share:.2f} %"


def reads_text(tables: float) -> str:
    """Return rows that were read as reads of the whole table, in words."""
    return f"{tables:,.1f} reads of the whole table"


_ZERO: Final = _BINS_MAX + 1  # stands for amounts of 0 while bins are counted


def _bin(amount: float | None) -> int | None:
    """Return the number of the bin of an amount; None if it is not known."""
    if amount is None:
        return None
    return math.floor(math.log(amount, BIN)) if amount > 0 else _ZERO


def _count_in(bins: dict[int | None, int], amount: float | None) -> None:
    """Count an amount in its bin."""
    number = _bin(amount)
    bins[number] = bins.get(number, 0) + 1


def _counted_bins(counts: Mapping[int | None, int]) -> Bins:
    known = {n: count for n, count in counts.items() if n is not None and n != _ZERO}
    return Bins(counts.get(_ZERO, 0), known)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return sums by name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _most(columns: Mapping[str, int]) -> dict[str, int]:
    """Return the COLUMNS_MAX columns that changed in most rows."""
    by_rows = sorted(columns.items(), key=lambda one: -one[1])
    return dict(by_rows[:COLUMNS_MAX])


@dataclass(frozen=True, slots=True)
class OlderTotals:
    """Totals of the lines that a history has no more.

    Attributes:
        by: totals by their time in UTC: `2026-01-31`, `2026-01`, or OLDER; disjoint.
    """

    by: Mapping[str, Totals] = field(default_factory=dict)

    def plus(self, line: HistoryLine) -> OlderTotals:
        """Return the totals with one line more."""
        return self.with_lines([line])

    def with_lines(self, lines: Iterable[HistoryLine]) -> OlderTotals:
        """Return the totals with more lines."""
        by_name: dict[str, list[HistoryLine]] = {}
        for line in lines:
            name = OLDER if line.at is None else line.at.astimezone(UTC).date().isoformat()
            by_name.setdefault(name, []).append(line)
        return self.merged(OlderTotals({name: Totals.of(*of) for name, of in by_name.items()}))

    def merged(self, other: OlderTotals) -> OlderTotals:
        """Return the totals of both."""
        by = dict(self.by)
        for name, one in other.by.items():
            by[name] = by[name].plus(one) if name in by else one
        return OlderTotals(by)

    @property
    def whole(self) -> Totals:
        """Return the totals of all lines."""
        return reduce(Totals.plus, self.by.values(), Totals())

    @property
    def days(self) -> list[DayOfChanges]:
        """Return what refreshes found by day, oldest first, since the newest day with a load."""
        found: list[DayOfChanges] = []
        for name, one in sorted(self.by.items()):
            if len(name) != _DAY:
                continue
            if one.loads:
                found.clear()
                continue
            with contextlib.suppress(ValueError):
                day = date.fromisoformat(name)
                found.append(DayOfChanges(day, one.inserted, one.updated, one.deleted))
        return found

    @property
    def since(self) -> str | None:
        """Return the first day, or month, that is kept apart; None: there is none."""
        return min((name for name in self.by if name != OLDER), default=None)

    @property
    def text(self) -> str:
        """Return the totals in words."""
        since = f", from {self.since}" if self.since else ""
        return f"older than the lines that are kept{since}: {self.whole.text()}"

    def bounded(self) -> OlderTotals:
        """Return the same totals in at most DAYS_MAX days, MONTHS_MAX months and
        TOTALS_BYTES_MAX bytes."""
        by = _newest(_newest(self.by, _DAY, DAYS_MAX), _MONTH, MONTHS_MAX)
        while len(_written(by)) > TOTALS_BYTES_MAX and len(by) > 1:
            length = _DAY if any(len(name) == _DAY for name in by) else _MONTH
            by = _newest(by, length, sum(len(name) == length for name in by) // 2)
        return OlderTotals(by)

    def to_line(self) -> bytes:
        """Return the totals as a line, without its end."""
        return _written(self.by)

    @classmethod
    def from_line(cls, line: bytes) -> OlderTotals | None:
        """Return what `to_line` wrote; None if it is another line, or damaged."""
        try:
            by = json.loads(line)[_KEY]
            return cls({_name(name): Totals.from_json(body) for name, body in by.items()})
        except DAMAGED:
            return None


def _written(by: Mapping[str, Totals]) -> bytes:
    return json.dumps({_KEY: {name: one.to_json() for name, one in sorted(by.items())}}).encode()


def _longer(name: str) -> str:
    """Return the month of a day, or OLDER for a month."""
    return name[:_MONTH] if len(name) == _DAY else OLDER


def _newest(by: Mapping[str, Totals], length: int, most: int) -> dict[str, Totals]:
    """Return totals of at most so many names of a length; older ones are added to longer times."""
    names = sorted(name for name in by if len(name) == length)
    old = names[: max(len(names) - most, 0)]
    kept = {name: one for name, one in by.items() if name not in old}
    for name in old:
        longer = _longer(name)
        kept[longer] = kept.get(longer, Totals()).plus(by[name])
    return kept


def _name(name: str) -> str:
    if name != OLDER and len(name) not in (_DAY, _MONTH):
        raise ValueError(name)
    return name


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= GREATEST * GREATEST:
        raise ValueError(value)
    return value

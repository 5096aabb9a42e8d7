"""What refreshes told about change: counts of intervals of time, bounded for ever.

A refresh tells how many rows differ between two snapshots, so an interval reaches from the `as_of`
of one complete refresh to that of the next, both by the source's clock. The counts are net: a row
that changed twice counts once. Counts of parts are added to the complete refresh that follows. An
interval that the clock of the source makes impossible is dropped and counted.

The newest RECENT_MAX intervals are kept as they are. Older ones are folded into sums for each hour
of the week; they outlive the lines of the history and reloads. The rows of a folded interval are
given to its hours in proportion to the rates so far, one step of an online EM (O. Cappé,
E. Moulines, J. Royal Statist. Soc. B 71(3), 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from driftline.arrays import Floats

from warehouse_agent.change_models.week import HOURS, Week
from warehouse_agent.json_values import GREATEST

RECENT_MAX = 400  # intervals; about 20 kB of JSON
INTERVAL_DAYS_MAX = 400  # a longer one tells nothing about hours, and is rather a wrong clock
PRIOR_HOURS = 0.25  # of the mean rate, added to every segment
GROWN = 1.25  # intervals over those that a model was fitted to, from which it is fitted again
TAIL = 0.99  # quantile of positive counts, at which a folded count is cut
_DAY_S = 86_400.0
DAMAGED = (ValueError, LookupError, TypeError, AttributeError)  # of reading what is kept


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of an update: ((new − old) / `scale`)² of a numeric column, the squared error of
    Gal and Eckstein (Section 5.5.1, Eq. 14). A move by `scale` counts as one row."""

    column: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MeanSquare:
    """The moves of a numeric column that a refresh found.

    Attributes:
        column: its name.
        square: the mean of (new − old)² over the updated rows that have a number on both sides.
        measured: the share of those among the updated rows; each of the others counts as one row.
    """

    column: str
    square: float
    measured: float

    def of(self, distance: Distance) -> float:
        """Return the mean distance of an updated row."""
        return self.measured * self.square / distance.scale**2 + 1 - self.measured


@dataclass(frozen=True, slots=True)
class Interval:
    """Rows that changed from `start` to `end`, seconds since 1970 by the source's clock.

    `rows`: of the relation at its start; `moves`: of the updated rows, None: not known.
    """

    start: float
    end: float
    inserted: float
    updated: float
    deleted: float
    rows: float = 0.0
    moves: MeanSquare | None = None

    @property
    def changed(self) -> float:
        """Return D, the number of changed rows."""
        return self.inserted + self.updated + self.deleted

    @property
    def hours(self) -> float:
        """Return the length in hours."""
        return (self.end - self.start) / 3600

    def to_json(self) -> list[float]:
        """Return the arguments; `astuple` takes twenty times as long, at each refresh."""
        return [self.start, self.end, self.inserted, self.updated, self.deleted, self.rows]


@dataclass(frozen=True, slots=True)
class RefreshObservation:
    """The counts and times of one refresh that went well; None: not said, or not possible.

    Attributes:
        as_of, refreshed_at: as its report has them, which they identify.
        changed: rows inserted, updated and deleted.
        total: rows that it left.
        is_part: some rows were not compared.
        is_load: nothing was published before.
        is_other: its counts are not changes of the source: other columns, or files repaired.
        exchange_s: of a pass over tiles, the seconds of its exchange; else 0.
        is_resumed: an earlier command had begun the pass.
        took_s: seconds of all phases.
        moves: of a numeric column in its updated rows; None: not measured.
    """

    as_of: str | None
    refreshed_at: str | None
    changed: tuple[float, float, float] | None
    total: float | None
    is_part: bool = False
    is_load: bool = False
    is_other: bool = False
    exchange_s: float = 0.0
    is_resumed: bool = False
    took_s: float | None = None
    moves: MeanSquare | None = None


def _zeros() -> Floats:
    return np.zeros(HOURS)


@dataclass(frozen=True, slots=True, eq=False)
class OlderIntervals:
    """Sums over older intervals, by hours of the week of `zone`; float64 [168] each.

    Attributes:
        hours: hours of exposure.
        rows: changed rows that are expected to have been of this hour.
        intervals: their number.
    """

    zone: str = "UTC"
    hours: Floats = field(default_factory=_zeros)
    rows: Floats = field(default_factory=_zeros)
    intervals: int = 0

    def plus(self, one: Interval, rows: float) -> OlderIntervals:
        """Return the sums with one interval more, of which `rows` are counted."""
        exposure = Week(self.zone).exposures([one.start], [one.end])[0]
        total = float(self.hours.sum())
        mean = (float(self.rows.sum()) + rows) / (total + one.hours)
        rates = (self.rows + PRIOR_HOURS * mean) / (self.hours + PRIOR_HOURS)
        expected = exposure * rates
        amount = float(expected.sum())
        share = expected / amount if amount > 0 else exposure / one.hours
        return OlderIntervals(
            self.zone,
            self.hours + exposure,
            self.rows + rows * share,
            self.intervals + 1,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Everything that refreshes of one fragment told about change.

    Attributes:
        recent: the newest intervals, oldest first.
        folded: older ones.
        until: the source's instant of the last complete refresh; None: never.
        parts: rows inserted, updated and deleted that parts found since then.
        dropped: intervals that the clock of the source made impossible.
        line: `as_of` and `refreshed_at` of the newest report that is in it.
        taken: the instant of its snapshot by the clock of the warehouse; None: not known.
        behind_s: seconds by which its `as_of` is older than that: what a standby shows, or a clock
            that is wrong.
    """

    recent: tuple[Interval, ...] = ()
    folded: OlderIntervals = field(default_factory=OlderIntervals)
    until: float | None = None
    parts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    dropped: int = 0
    line: tuple[str, str] | None = None
    taken: float | None = None
    behind_s: float = 0.0

    @property
    def last(self) -> float | None:
        """Return the source's instant of the last refresh, or part of one; None: never."""
        return None if self.line is None else _seconds(self.line[0])

    @property
    def intervals(self) -> int:
        """Return the number of intervals, folded ones among them."""
        return len(self.recent) + self.folded.intervals

    def after(self, reports: Iterable[RefreshObservation]) -> Memory:
        """Return the memory with the reports that are not in it yet.

        Args:
            reports: of refreshes that went well, oldest first; those up to `line` are skipped, or,
                if it is not among them, those that are not later than `until`.
        """
        known, all_ = self, [(line, r) for r in reports if (line := _line(r)) is not None]
        if self.line in [line for line, _ in all_]:
            newest = max(n for n, (line, _) in enumerate(all_) if line == self.line)
            new = all_[newest + 1 :]
        else:
            until = self.until
            new = [one for one in all_ if until is None or _seconds(one[0][0]) > until]
        for line, report in new:
            known = known._with(line, report)
        return known

    def _with(self, line: tuple[str, str], report: RefreshObservation) -> Memory:
        if report.changed is None or report.total is None:
            return self
        changed, total = np.array(report.changed), report.total
        at = _seconds(line[0]) + report.exchange_s / 2  # of a pass, the middle of its reading
        inserted, updated, deleted = (self.parts + changed).tolist()
        taken, behind_s = _taken(line, report)
        known = replace(self, line=line, taken=taken, behind_s=behind_s)
        more = replace(known, parts=(inserted, updated, deleted))
        if report.is_part:  # it ends no interval
            return more
        before = replace(known, until=at, parts=(0.0, 0.0, 0.0))
        if self.until is None or report.is_load:
            return before
        if at == self.until:  # no later state
            return known if report.is_other else more
        if not 0 < at - self.until <= INTERVAL_DAYS_MAX * _DAY_S:
            return replace(before, dropped=self.dropped + 1)
        if report.is_other:
            return before
        rows = max(total - float(changed[0]) + float(changed[2]), 0.0)
        found = Interval(self.until, at, inserted, updated, deleted, rows, report.moves)
        return before.plus(found)

    def plus(self, one: Interval) -> Memory:
        """Return the memory with one interval more."""
        recent, folded = (*self.recent, one), self.folded
        while len(recent) > RECENT_MAX:
            tail = cut_at(np.array([i.changed for i in recent]), TAIL)
            folded = folded.plus(recent[0], min(recent[0].changed, tail))
            recent = recent[1:]
        return replace(self, recent=recent, folded=folded)

    def weighed(
        self, weights: tuple[float, float, float], distance: Distance | None = None
    ) -> Memory:
        """Return the memory with each change counted by its weight; folded intervals, whose kinds
        are not known, by the mean weight of the recent ones.

        Steps of mean 0 add up in their squares: a row that moved Γ times by steps of variance σ²
        is at Γσ² from where it was, in the mean (Prop. 7). So what an interval found, however long
        it was, tells the rate at which distance grows. Where steps have a mean, the square of
        the drift, which grows with the square of time, is in it as it was at the end of the
        intervals; these settle where they cost a hundredth more than the best (test_drift.py).

        Args:
            weights: of an inserted, an updated and a deleted row.
            distance: by which an updated row weighs besides; None: each counts as one.
        """
        if weights == (1.0, 1.0, 1.0) and distance is None:
            return self
        inserted, updated, deleted = weights
        usual = self.mean_distance(distance)

        def moved(one: Interval) -> float:
            if distance is None or one.moves is None or one.moves.column != distance.column:
                return usual
            return one.moves.of(distance)

        recent = tuple(
            replace(
                one,
                inserted=one.inserted * inserted,
                updated=one.updated * updated * moved(one),
                deleted=one.deleted * deleted,
                moves=None,
            )
            for one in self.recent
        )
        found = sum(one.changed for one in self.recent)
        mean = sum(one.changed for one in recent) / found if found else 1.0
        folded = replace(self.folded, rows=self.folded.rows * mean)
        return replace(self, recent=recent, folded=folded)

    def mean_distance(self, distance: Distance | None) -> float:
        """Return the mean distance of the updated rows of recent intervals whose moves are known;
        1 if none are."""
        known = [
            (one.updated, one.moves.of(distance))
            for one in self.recent
            if distance is not None
            and one.moves is not None
            and one.moves.column == distance.column
        ]
        rows = sum(updated for updated, _ in known)
        return sum(updated * moved for updated, moved in known) / rows if rows else 1.0

    def in_zone(self, zone: str) -> Memory:
        """Return the memory for a time zone; sums of hours of another zone are forgotten."""
        if zone == self.folded.zone:
            return self
        return replace(self, folded=OlderIntervals(zone))

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` reads."""
        folded = self.folded
        return {
            "recent": [one.to_json() for one in self.recent],
            "folded": {
                "zone": folded.zone,
                "hours": np.round(folded.hours, 4).tolist(),
                "rows": np.round(folded.rows, 4).tolist(),
                "intervals": folded.intervals,
            },
            "until": self.until,
            "parts": self.parts,
            "dropped": self.dropped,
            "line": self.line,
            "taken": self.taken,
            "behind_s": self.behind_s,
            "moves": [one.moves and astuple(one.moves) for one in self.recent],
        }


@dataclass(slots=True)
class LearnedMemories:
    """The memories that models are fitted to, by fragment, in a process that decides for long.

    A model changes little with one interval more, and takes much longer to fit than a decision. So
    a memory stands for the later ones of its fragment until they have GROWN times its intervals.
    """

    _memories: dict[str, Memory] = field(default_factory=dict)

    def of(self, name: str, memory: Memory) -> Memory:
        """Return the memory to fit to, where `memory` is the newest one of a fragment."""
        known = self._memories.get(name)
        if (
            known is None
            or known.folded.zone != memory.folded.zone
            or not known.intervals <= memory.intervals < GROWN * known.intervals
        ):
            self._memories[name] = known = memory
        return known


def from_json(body: Mapping[str, Any]) -> Memory:
    """Return the memory that `to_json` wrote; an empty one if it is damaged."""
    try:
        folded, until, line = body["folded"], body["until"], body["line"]
        listed = body["recent"]
        moves = [None if one is None else _moves(one) for one in body.get("moves") or ()]
        if len(moves) != len(listed):  # a release without them has written the others
            moves = [None] * len(listed)
        recent = tuple(
            replace(_interval(one), moves=moved) for one, moved in zip(listed, moves, strict=True)
        )
        if any(one.end <= one.start for one in recent) or len(recent) > RECENT_MAX:
            return Memory()
        inserted, updated, deleted = map(_amount, body["parts"])
        lines = None if line is None else (str(line[0]), str(line[1]))
        taken = body.get("taken")
        return Memory(
            recent,
            OlderIntervals(
                str(folded["zone"]),
                _hours(folded["hours"]),
                _hours(folded["rows"]),
                int(_amount(folded["intervals"])),
            ),
            None if until is None else _amount(until),
            (inserted, updated, deleted),
            int(_amount(body["dropped"])),
            lines,
            None if taken is None else _amount(taken),
            _amount(body.get("behind_s", 0.0)),
        )
    except DAMAGED:
        return Memory()


def cut_at(counts: Floats, quantile: float) -> float:
    """Return the quantile of the positive counts, [n]; infinite if there is none.

    With a quantile over all counts a table that seldom changes would be cut at nothing.
    """
    positive = counts[counts > 0]
    return float(np.quantile(positive, quantile)) if len(positive) else math.inf


def _line(report: RefreshObservation) -> tuple[str, str] | None:
    """Return what identifies a report; None if it does not say when its snapshot was."""
    try:
        _seconds(report.as_of or "")
        return report.as_of or "", str(report.refreshed_at)
    except DAMAGED:
        return None


def _taken(line: tuple[str, str], report: RefreshObservation) -> tuple[float, float]:
    """Return when a snapshot was taken by the clock of the warehouse, and by how many seconds its
    `as_of` is older than that.

    A snapshot is not newer than its comparison, and not older than the refresh. Between them the
    source knows better when it was. A pass that was resumed is as old as its first tile.
    """
    as_of = _seconds(line[0])
    try:
        checked = _seconds(line[1])
    except DAMAGED:
        return as_of, 0.0
    took_s = math.inf if report.is_resumed or report.took_s is None else report.took_s
    taken = min(max(as_of, checked - took_s), checked)
    return taken, max(taken - as_of, 0.0)


def _seconds(text: str) -> float:
    at = datetime.fromisoformat(text)
    return _amount((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _amount(raw: Any) -> float:
    value = float(raw)
    if not 0 <= value <= GREATEST:
        raise ValueError(raw)
    return value


def _interval(raw: Any) -> Interval:
    start, end, inserted, updated, deleted, *rest = map(_amount, raw)
    (rows,) = rest or [0.0]
    return Interval(start, end, inserted, updated, deleted, rows)


def _moves(raw: Any) -> MeanSquare:
    column, square, measured = raw
    if not 0 <= square < math.inf:
        raise ValueError(raw)
    return MeanSquare(str(column), float(square), min(_amount(measured), 1.0))


def _hours(raw: Any) -> Floats:
    values = np.array([_amount(value) for value in raw])
    if values.shape != (HOURS,):
        raise ValueError(raw)
    return values

"""The ways that a refresh may go, priced from what is known without reading a row.

Candidates are priced by the functions that decide in a refresh (`choice.choose` and
`group_selection.grouping`), so a price is wrong only if its inputs are. Each opening returns its
own candidates through this module (`methods.registry.refreshes`). A way that the source's DBA does
not allow now is known here, before anything is compared (`Allowance`). Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import numpy as np
from driftline.errors import NEXT_SCAN, DriftlineError, LimitExceeded, NotNow
from driftline.limits import GROUPED_KEYS_MAX
from driftline.reconciliation.groups import ROW_HASH_BYTES, refines
from driftline.reconciliation.ranges import Partition
from driftline.reconciliation.sketches import CELL_BYTES, HASHES, sampled
from driftline.rows.digests import Digest

from warehouse_agent.planning import choice as plan
from warehouse_agent.planning import chunk_size, group_selection, sketch_size
from warehouse_agent.planning.change_forecast import ChangeForecast, DayOfChanges, EarlierRefresh
from warehouse_agent.planning.choice import NAMES, Choice, Costs, Disagreement, Method, PricedChoice
from warehouse_agent.planning.group_selection import ClassedGroups, GroupSizes, Histogram
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import LEVELS, Prices
from warehouse_agent.planning.sketch_size import CellSample, Sketch, Stall
from warehouse_agent.planning.tiling import Tiled, pass_cost
from warehouse_agent.report import counted

_BY_KEY = '`proof = "part"` or `incremental`'
_P_DELETE_MAX = 0.99
GROUPED_ROWS_MIN = 10_000  # below, groups save less than it takes to read the rows' statistics
GROUPED_AFTER = 6  # refreshes: by fewer, rows that changed by chance seem to change always
_GROUPS_BYTES = plan.OPEN_BYTES + plan.REPLY_BYTES  # of the messages around groups


@dataclass(frozen=True, slots=True)
class Whole:
    """Every row is compared, in one exchange."""

    tiles: ClassVar[None] = None
    tiles_done: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows are compared: the source reads at most `rows_max`."""

    rows_max: int
    tiles: ClassVar[None] = None
    tiles_done: ClassVar[None] = None


class CopyReason(StrEnum):
    """Reasons to ask for all rows: what was expected to differ, or what the source said does."""

    FORECAST = "forecast"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Unstaged:
    """No row is compared: those of an unfinished load or copy are listed by chunks, and all others
    come.

    Attributes:
        rows: that are staged, or somewhat fewer.
        frame_bytes: of their frames.
        changed: of them, expected to have changed since they came; 0 for a load: nothing tells.
        reason: why all rows were asked for; None: a load.
    """

    rows: int
    frame_bytes: int = 0
    changed: float = 0.0
    reason: CopyReason | None = None
    tiles: ClassVar[None] = None
    tiles_done: ClassVar[None] = None

    def rows_to_come(self, theirs: int) -> int:
        """Return how many rows are expected to come, of so many that the source has."""
        again = chunk_size.share_again(
            self.frame_bytes, plan.UNPACKED * self.frame_bytes, self.changed
        )
        return max(theirs - round(self.rows * (1 - again)), 0)


Scope = Whole | Tiled | Part | Unstaged


@dataclass(frozen=True, slots=True)
class Allowance:
    """The source's word on what may be read of a relation now (protocol, section 9).

    It stays valid as time goes by, because `begins` is compared with our clock.

    Attributes:
        scan: a scan may begin.
        begins: when scans may begin next, if not when the source was asked; None: never.
        rows_by_key: the most rows that an exchange may compare by key; None: no limit.
        has_hours: scans may begin in some hours only; False: always, or never.
        knows_keys: the source takes rows that are named by their keys.
    """

    scan: bool
    begins: datetime | None = None
    rows_by_key: int | None = None
    has_hours: bool = False
    knows_keys: bool = False

    def may_scan(self, now: datetime) -> bool:
        """Return True if a scan may begin now."""
        return self.scan or (self.begins is not None and self.begins <= now)

    def covers(self, rows: int, now: datetime) -> bool:
        """Return True if `rows` rows may all be compared by key and no scan may begin: if the DBA
        named a limit, and a part of as many leaves the room for new rows that every part has."""
        if self.may_scan(now) or self.rows_by_key is None or not self.knows_keys:
            return False
        budget = group_selection.PartBudget.of(self.rows_by_key)
        return rows <= budget.likeliest + budget.in_turn

    def part(self, read_at_most: int | None, now: datetime) -> int | None:
        """Return how many rows a refresh that may be partial compares by key; None: it compares
        all.

        Hours for scans decide if there are any: all rows are compared within them, a part outside.

        Args:
            read_at_most: the fragment's own limit; None: as many as the source allows.
        """
        if not self.may_scan(now):
            return read_at_most or min(self.rows_by_key or GROUPED_KEYS_MAX, GROUPED_KEYS_MAX)
        return None if self.has_hours else read_at_most

    def describe(self, now: datetime) -> str:
        """Return when scans may begin, and the limit of rows by key, for people; empty if nothing
        is limited."""
        scans = ""
        if not self.may_scan(now):
            scans = f"no scan before {_instant(self.begins)}" if self.begins else "no scan"
        elif self.has_hours:
            scans = "scans in some hours, now one of them"
        limit = f"{counted(self.rows_by_key, 'row')} by key" if self.rows_by_key else ""
        return ", ".join(filter(None, (scans, limit)))

    def refusal(self, name: str, *, by_key: int | None, now: datetime) -> DriftlineError | None:
        """Return the error of a refresh that the source would refuse now; None: it would not.

        name: of the fragment; by_key: rows that an exchange compares by key, None for a scan.
        """
        if by_key is not None:
            return None if self.allows(by_key) else self._too_many(name, by_key)
        return None if self.may_scan(now) else self._no_scan(name)

    def allows(self, rows: int) -> bool:
        """Return True if an exchange may compare so many rows by key."""
        return self.rows_by_key is None or rows <= self.rows_by_key

    def _too_many(self, name: str, rows: int) -> LimitExceeded:
        limit = self.rows_by_key or 0
        return LimitExceeded(
            f"The source's DBA allows {counted(limit, 'row')} of the relation to be read by key"
            f" (rows_by_key), and this refresh would ask for {rows:,}.",
            where=name,
            remedy=f"Set `read_at_most`, or `rows` of `incremental`, to at most {limit}.",
        )

    def _no_scan(self, name: str) -> DriftlineError:
        if self.begins is None:
            return LimitExceeded(
                "All rows would be compared, and the source's DBA allows no scan of the relation.",
                where=name,
                remedy=f"Refresh it by key ({_BY_KEY}). A first load and a complete refresh need a"
                " scan: ask the DBA for hours in which one may begin.",
            )
        begins = _instant(self.begins)
        return NotNow(
            "All rows would be compared, and the source's DBA allows a scan of the relation not"
            f" before {begins}.",
            where=name,
            remedy=f"Run the refresh again then, or refresh it by key ({_BY_KEY}).",
            details={NEXT_SCAN: begins},
        )


@dataclass(frozen=True, slots=True)
class ChangeKinds:
    """The shares of inserted and of deleted rows among changed ones; the others are updated."""

    inserted: float = 0.0
    deleted: float = 0.0

    @classmethod
    def of(cls, earlier: Sequence[EarlierRefresh]) -> ChangeKinds:
        """Return those of earlier refreshes; all are updates if nothing is known."""
        told = [one for one in earlier if one.counts_changes and not one.is_load]
        changed = max(sum(one.changed for one in told), 1)
        inserted, deleted = (sum(one.inserted for one in told), sum(one.deleted for one in told))
        return cls(inserted / changed, deleted / changed)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything that a prediction depends on.

    `rows` and `version` are published, None before the first load; `rows_expected` is the source's
    estimate, None if it gave none; `bounds` are the least and the greatest integer key; `now` is
    the time of the prediction; `files` has the rows and bytes of each data file; `rows_lost` rows
    of ours are known to be missing: they differ, and are not new; `tiled` is None if the refresh is
    one exchange; `read_at_most` rows are compared by key, None: all are; `named_key_bytes` are the
    bytes of a key that travels itself, None: keys have no order; `allowance` is None if the source
    did not say what it allows; `marker` is None if all rows must be proven; `is_resumed`: rows that
    an unfinished exchange staged are among ours; `unstaged`: those of an unfinished load or copy
    are listed by chunks, and not among ours; `days` are the totals of changes by day, oldest first,
    none if they are not needed; `zone` is the source's time zone; `is_load`: no row of a version is
    compared, so all rows are expected to come, or the rest of those that cut exchanges staged;
    `by_key`: no scan may begin, and all rows may be compared by their keys;
    `groups` are those of the last comparison by groups; `kinds` are those of the changes, None:
    as in earlier refreshes; `likely` are our rows by their likelihood of an update, None: their
    statistics were not read (`groups_may_pay`); `in_groups`: groups are expected to cost least.
    """

    name: str
    version: int | None
    rows: int | None
    rows_expected: int | None
    prices: Prices
    partition: Partition
    integer_key: bool
    bounds: tuple[int, int] | None
    line: Line
    now: datetime
    forced: Method | None
    read_at_most: int | None
    earlier: tuple[EarlierRefresh, ...]
    files: tuple[tuple[int, int], ...] = ()
    tiled: Tiled | None = None
    rows_lost: int = 0
    named_key_bytes: float | None = None
    allowance: Allowance | None = None
    marker: MarkerState | None = None
    is_resumed: bool = False
    unstaged: Unstaged | None = None
    days: tuple[DayOfChanges, ...] = ()
    zone: str = "UTC"
    is_load: bool = False
    by_key: bool = False
    groups: GroupSizes | None = None
    kinds: ChangeKinds | None = None
    likely: Histogram | None = None
    in_groups: bool = False

    @property
    def refusal(self) -> DriftlineError | None:
        """Return why this refresh would be refused now; None: it would not, or the source does not
        say what it allows."""
        scope, by_key = self.scope, None
        if isinstance(scope, Part) and not self.by_index and self.named_key_bytes is None:
            return group_selection.unfit_key(self.name)
        if self.allowance is None:
            return None
        if isinstance(scope, Part):
            by_key = scope.rows_max
        elif self.in_shards:
            by_key = self.ours
        elif isinstance(scope, Tiled) and (scope.tiles > 1 or self.allowance.rows_by_key):
            # One tile without a limit is a scan. Some tile has at least the mean.
            by_key = -(-self.ours // scope.tiles)
        return self.allowance.refusal(self.name, by_key=by_key, now=self.now)

    def check_allowed(self) -> None:
        """Raise the error of `refusal`, if there is one."""
        if (refusal := self.refusal) is not None:
            raise refusal

    @property
    def scope(self) -> Scope:
        """The rows to compare: all in one exchange, all in tiles, a part, or none."""
        if self.unstaged is not None:
            return self.unstaged
        if self.tiled is not None:
            return self.tiled
        return Part(self.read_at_most) if self.read_at_most and self.rows else Whole()

    @property
    def costs(self) -> Costs:
        """The costs by which a continuation is chosen."""
        return Costs(
            self.prices,
            self.line,
            self.integer_key,
            self.forced,
            self.rows_lost,
            self.finds_rows,
        )

    @property
    def finds_rows(self) -> bool:
        """True if the source found the changed rows of the last refresh without another scan.

        After a comparison that found nothing a source keeps neither places nor keys.
        """
        last = self.earlier[-1] if self.earlier else None
        if last is None or last.method != Method.SKETCH.value:
            return False
        return last.scans == 1 and last.inserted + last.updated > 0

    def strata_sent(self, slots: int) -> int:
        """Return the slots whose strata go with an opening: all, or none if they are left out."""
        return 0 if self.line.is_brief else slots

    @property
    def ours(self) -> int:
        """Rows of our side."""
        return self.rows or 0

    @property
    def theirs(self) -> int:
        """Rows of the source, taken to be as many as ours if it gave no estimate."""
        return self.ours if self.rows_expected is None else self.rows_expected

    def level(self, ours: int, *, at_once: bool = False) -> int:
        """Return the zstd level of an exchange that compares `ours` rows of the working copy.

        at_once: all rows are copied, and none is compared before.
        """
        return self.line.level(0 if self.is_load else ours, at_once=at_once)

    @property
    def in_shards(self) -> bool:
        """True if groups of all rows are read by key: no scan may begin, or they are asked for, and
        are more than one exchange can name."""
        if not isinstance(self.scope, Whole) or not self.ours or self.named_key_bytes is None:
            return False
        return self.by_key or (self.forced is Method.GROUP and self.ours > GROUPED_KEYS_MAX)

    @property
    def by_index(self) -> bool:
        """True if cells name integer keys, which the source reads by an index."""
        return sketch_size.embedding_for(max(self.ours, 1), self.bounds).base is not None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way that a refresh may go, named `what`.

    `bytes` move in both directions; None if no row was ever shipped, because types do not say how
    long values are or how well they compress. The source reads `source_rows`, in `source_scans`
    full scans or by index. `exchange_seconds` are for scan and line; `seconds` is the median time
    of earlier refreshes that went this way; `bytes_rewritten` are of our data files, for scattered
    changes.
    """

    what: str
    bytes: int | None
    round_trips: int
    source_scans: int
    source_rows: int | None
    exchange_seconds: float | None
    bytes_rewritten: int
    seconds: float | None


def load(known: PlanInputs) -> Candidate:
    """Return the first load: Describe, then every row."""
    rows, size = known.rows_expected, None
    if rows is not None and not known.prices.guessed:
        slots = known.strata_sent(known.partition.ranges)
        size = plan.opening_bytes(known.partition, slots) + int(known.prices.copy(rows))
    took = None if rows is None or size is None else round(known.line.seconds(size, 2, rows), 2)
    return Candidate("full copy", size, 2, 1, rows, took, 0, None)


def copy_bytes(known: PlanInputs, rows: int) -> int | None:
    """Return the bytes that a copy of so many rows is expected to take; None: no row was ever
    sent."""
    return load(replace(known, rows_expected=rows)).bytes


def rest_of_load(known: PlanInputs, unstaged: Unstaged) -> Candidate:
    """Return the rest of a load that was cut: as many rows as are not staged, if none changed."""
    rest = None if known.rows_expected is None else unstaged.rows_to_come(known.rows_expected)
    return _rest(known, load(known), load(replace(known, rows_expected=rest)))


def rest_of_copy(known: PlanInputs, unstaged: Unstaged) -> tuple[Candidate, Candidate]:
    """Return the rest of a copy that was cut, if nothing changed and if something did."""
    left = at_once(replace(known, rows_expected=unstaged.rows_to_come(known.theirs)))
    unchanged, copy = (_rest(known, *both) for both in zip(at_once(known), left, strict=True))
    return unchanged, copy


def _rest(known: PlanInputs, whole: Candidate, rest: Candidate) -> Candidate:
    """Return a copy, or a load, of which only the rest comes: the source reads all rows."""
    spent = rest.exchange_seconds
    if spent is not None and whole.source_rows is not None and rest.source_rows is not None:
        spent += (whole.source_rows - rest.source_rows) / known.line.rows_per_s
    return replace(whole, bytes=rest.bytes, exchange_seconds=spent)


def at_once(known: PlanInputs) -> tuple[Candidate, Candidate]:
    """Return the copy that nothing precedes, if nothing changed and if something did."""
    rows, level = known.theirs, known.level
    coarser = LEVELS[level(known.ours, at_once=True)] / LEVELS[level(known.ours)]
    size = plan.opening_bytes(plan.everything(), known.strata_sent(1))
    size += int(known.prices.copy(rows) * coarser)
    unchanged, copy = (
        _candidate(known, Method.FULL, size, 1, 0, changed) for changed in (0, known.ours)
    )
    return replace(unchanged, what="nothing changed"), copy


def stalled_ways(
    known: PlanInputs,
    sketch: Sketch | None,
    changed: int,
    offers: Callable[[Disagreement], list[PricedChoice]],
) -> tuple[tuple[Candidate, ...], str]:
    """Return "nothing changed" and every continuation of an opening that may stall, by what each
    `offers` for `changed` rows, at least 1; and the name of the one that a refresh would choose.

    `sketch` is None if the opening has strata of ranges.
    """
    ours, theirs, by_index = known.ours, known.theirs, known.by_index
    fixed = _fixed_bytes(known, sketch)
    candidates = [_candidate(known, None, fixed, 1, 0, 0)]
    new = max(theirs - ours, 0)
    # New integer keys may lie outside the cells. `choose` adds them to the changes, so those that
    # are among the changes must not count twice.
    in_cells = changed if by_index or sketch is None else max(changed, new)
    counted = min(changed, new, ours) if by_index and sketch is not None else 0
    differing = _differing(known, sketch, in_cells)
    has_strata = bool(_slots_sent(known, sketch))
    stall = None if sketch is None else _stall(sketch, differing, in_cells, sampled_too=has_strata)
    ranges, compared = known.partition.ranges, Digest(theirs - counted)
    at = Disagreement(known.costs, Digest(ours), compared, ranges, differing, stall)
    offered = offers(at)
    options = {offer.choice.method: offer.choice for offer in offered}
    chosen = plan.choose(at, offered).method
    options[Method.FULL] = Choice(Method.FULL, int(known.prices.copy(theirs)), rows_read=theirs)
    if sketch is not None and sketch.decodes(in_cells):  # the opening does not stall
        shipped, chosen = max(changed, new), Method.SKETCH
        size = int(known.prices.changes(shipped))
        finds = known.finds_rows
        again = plan.rows_again(shipped, theirs, by_index=by_index, finds_rows=finds)
        options[chosen] = Choice(chosen, size, rows_read=again, round_trips=0)
    slots = sketch.cells if sketch else ranges
    late = 0 if has_strata else plan.strata_bytes(slots)  # they come with the verdict
    fixed += plan.FOUND_BYTES + (stall.sample.cells if stall and stall.sample else 0)
    for method, choice in options.items():
        d = ours if method is Method.FULL else changed
        size, trips = fixed + choice.bytes_expected, 1 + choice.round_trips
        size += late if choice.round_trips else 0
        candidates.append(_candidate(known, method, size, trips, choice.rows_read, d))
    return tuple(candidates), NAMES[chosen]


def in_groups(
    known: PlanInputs, expected: ChangeForecast | None, changed: int
) -> tuple[Candidate, ...]:
    """Return "nothing changed" and, unless there are more rows than groups can name, a comparison
    of all rows by groups that finds `changed` rows."""
    ours, planned = known.ours, _planned_changes(known, expected)
    sizes = _group_sizes(known, ours, planned, is_named=known.in_shards)
    idle = _GROUPS_BYTES + _by_groups(known, sizes, 0).bytes_expected
    choice = _by_groups(known, sizes, changed)
    size, trips = _GROUPS_BYTES + choice.bytes_expected, choice.round_trips
    if known.in_shards:
        shards = -(-ours // GROUPED_KEYS_MAX)
        quiet = ExchangeWork(idle, shards, 0, ours)
        work = ExchangeWork(size, trips * shards, 0, ours + choice.rows_read)
        unchanged = priced(known, "nothing changed", None, quiet, 0)
        return unchanged, priced(known, NAMES[Method.GROUP], Method.GROUP, work, changed)
    unchanged = _candidate(known, None, idle, 1, 0, 0)
    if ours > GROUPED_KEYS_MAX:
        return (unchanged,)
    again = plan.rows_again(choice.rows_read, known.theirs, by_index=known.by_index)
    return unchanged, _candidate(known, Method.GROUP, size, trips, again, changed)


def groups_may_pay(known: PlanInputs, expected: ChangeForecast | None) -> bool:
    """Return True if the cells of a sketch for the expected changes take more bytes than the keys
    of all rows, which any groups take at least. Only then are the statistics of rows read, which
    tell if groups are cheaper: they are where it is mostly the same rows that change.
    """
    if expected is None or known.prices.guessed or known.forced is not None or known.is_resumed:
        return False
    if known.by_key or known.is_load or known.rows_lost or known.marker is not None:
        return False
    if not isinstance(known.scope, Whole) or not GROUPED_ROWS_MIN <= known.ours <= GROUPED_KEYS_MAX:
        return False
    if len(known.earlier) <= GROUPED_AFTER:
        return False
    span = sketch_size.embedding_for(known.ours, known.bounds).span
    keys = known.ours * group_selection.key_bytes(known.ours, span)
    return CELL_BYTES * sketch_size.cells_for(expected.median) > keys


def with_likelihoods(known: PlanInputs, expected: ChangeForecast, likely: Histogram) -> PlanInputs:
    """Return the inputs with our rows by their likelihood of an update, as many as are expected."""
    kinds = ChangeKinds.of(known.earlier)
    updated = _planned_changes(known, expected) * (1 - kinds.inserted - kinds.deleted)
    return replace(known, likely=likely.calibrated(updated))


def come_in_groups(known: PlanInputs, expected: ChangeForecast | None, changed: int) -> float:
    """Return how many rows come in a comparison of all by groups that finds `changed` rows."""
    planned = _planned_changes(known, expected)
    sizes = _group_sizes(known, known.ours, planned, is_named=known.in_shards)
    return _by_groups(known, sizes, changed).rows_come


def in_part(
    known: PlanInputs, part: Part, expected: ChangeForecast | None, changed: int
) -> Candidate:
    """Return the comparison of a part, read by index, that finds `changed` rows."""
    compared = min(part.rows_max, known.ours)
    planned = _planned_changes(known, expected) * compared // max(known.ours, 1)
    is_named = not known.by_index or compared > GROUPED_KEYS_MAX
    choice = _by_groups(known, _group_sizes(known, compared, planned, is_named=is_named), changed)
    size, rows = _GROUPS_BYTES + choice.bytes_expected, compared + choice.rows_read
    what = f"{counted(compared, 'row')} of it, by groups"
    work = ExchangeWork(size, choice.round_trips, 0, rows)
    return priced(known, what, Method.GROUP, work, changed)


def p_delete(known: PlanInputs, expected: ChangeForecast | None) -> float:
    """Return P({−t}), the probability that a row is deleted before this refresh."""
    return _p_delete(known, _planned_changes(known, expected), known.ours)


def in_tiles(known: PlanInputs, tiled: Tiled, changed: int) -> tuple[tuple[Candidate, ...], str]:
    """Return a pass that finds nothing, a pass that finds `changed` rows, and the latter's name."""
    chosen, candidates, ours = f"in {counted(tiled.tiles, 'tile')}", [], known.ours
    pauses_s = (tiled.tiles - 1) * tiled.wanted.pause_s
    for what, d, method in (("nothing changed", 0, None), (chosen, changed, Method.RANGE)):
        size, trips = pass_cost(
            ours, d, known.prices.row, tiled.wanted, has_strata=not known.line.is_brief
        )
        work = ExchangeWork(size, trips, 0, ours, pauses_s)
        candidates.append(priced(known, what, method, work, d))
    return tuple(candidates), chosen


def _planned_changes(known: PlanInputs, expected: ChangeForecast | None) -> int:
    """Return the number of changes for which groups are sized."""
    return expected.median if expected else round(known.ours * plan.CHANGE_SHARE)


def _group_sizes(known: PlanInputs, rows: int, planned: int, *, is_named: bool) -> ClassedGroups:
    """Return the groups of `rows` rows: by their statistics, if these were read; else those of the
    last comparison of as many. Before there was one, all rows are taken to be equally likely, and
    groups to be sized for `planned` changes."""
    learnt = None if known.groups is None else known.groups.for_rows(rows, is_named=is_named)
    likely = known.likely if rows == known.ours else None
    if learnt is not None and likely is None:
        return learnt.classed()
    span = sketch_size.embedding_for(max(known.ours, 1), known.bounds).span
    key = group_selection.key_bytes(rows, span)
    if is_named and known.named_key_bytes is not None:
        key = known.named_key_bytes
    if learnt is not None:
        key = learnt.key_bytes
    histogram = likely or Histogram.even(rows, planned / max(rows, 1))
    sizes = group_selection.grouping(
        histogram,
        row_bytes=known.prices.row,
        key_bytes=key,
        wait_bytes=known.line.round_trip_bytes,
        p_delete=_p_delete(known, planned, rows),
    )
    return ClassedGroups(histogram, sizes.rows.astype(np.float64), key, rows)


def _by_groups(known: PlanInputs, sizes: ClassedGroups, changed: int) -> Choice:
    """Return a comparison by groups that finds `changed` rows; it reads the rows of groups that
    differ."""
    kinds = known.kinds or ChangeKinds.of(known.earlier)
    new, gone = round(changed * kinds.inserted), round(changed * kinds.deleted)
    gone = min(gone, sizes.compared)
    touched, groups = sizes.touched(max(changed - new - gone, 0), gone), sizes.groups
    left = max(touched.rows - gone, 0.0)
    hashes = touched.rows_updated + touched.groups_lost  # one for a group that lost rows
    is_refined = touched.rows > 0 and refines(
        rows=round(left),
        hashes=round(hashes),
        differing=round(touched.groups_updated),
        lost=round(touched.groups_lost),
        groups=round(groups),
        row_bytes=round(known.prices.row),
        wait_bytes=round(known.line.round_trip_bytes),
    )
    size = (sizes.compared + gone) * sizes.key_bytes + ROW_HASH_BYTES * groups
    if is_refined:
        size += ROW_HASH_BYTES * hashes
    come = new + sizes.alone + (touched.updated if is_refined else left)
    size += known.prices.changes(come)
    again, trips = math.ceil(touched.rows), 1 + is_refined
    return Choice(Method.GROUP, int(size), rows_read=again, round_trips=trips, rows_come=come)


def _p_delete(known: PlanInputs, planned: int, rows: int) -> float:
    """Return P({−t}) of one of `rows` rows, of which `planned` are expected to change."""
    deleted = ChangeKinds.of(known.earlier).deleted
    return min(planned * deleted / max(rows, 1), _P_DELETE_MAX)


def _candidate(
    known: PlanInputs, method: Method | None, size: int, trips: int, reread: int, changed: int
) -> Candidate:
    """Return a candidate with one scan, after which the source reads `reread` rows again."""
    theirs = known.theirs
    what = "nothing changed" if method is None else NAMES[method]
    rows, scans = theirs + reread, 1 + (reread >= theirs > 0)
    candidate = priced(known, what, method, ExchangeWork(size, trips, scans, rows), changed)
    if method is not None and known.prices.guessed:
        return replace(candidate, bytes=None, exchange_seconds=None)
    return candidate


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """The amounts by which a way to refresh is priced.

    Attributes:
        size: bytes in both directions.
        trips: round trips.
        scans: full scans of the source, which reads `rows`.
        pauses_s: seconds between tiles.
    """

    size: int
    trips: int
    scans: int
    rows: int
    pauses_s: float = 0.0


def priced(
    known: PlanInputs,
    what: str,
    method: Method | None,
    work: ExchangeWork,
    changed: int,
) -> Candidate:
    """Return a candidate with its times and the bytes that it rewrites."""
    size, trips, rows = work.size, work.trips, work.rows
    took = round(known.line.seconds(size, trips, rows) + work.pauses_s, 2)
    again, spent = bytes_rewritten(known, changed), _seconds(known, method)
    return Candidate(what, size, trips, work.scans, rows, took, again, spent)


def bytes_rewritten(known: PlanInputs, changed: int) -> int:
    """Return the bytes of the files that scattered changes touch: a file of r of n rows is touched
    with probability 1 − exp(−changed·r/n)."""
    n = max(sum(rows for rows, _ in known.files), 1)
    return round(sum(-math.expm1(-changed * rows / n) * size for rows, size in known.files))


def _fixed_bytes(known: PlanInputs, sketch: Sketch | None) -> int:
    """Return the bytes of a refresh that finds nothing: the opening and an end."""
    first = _slots_sent(known, sketch)
    fixed = plan.REPLY_BYTES + plan.opening_bytes(known.partition, first)
    return fixed + (sketch.bytes_sent + plan.SKETCH_BYTES if sketch else 0)


def _slots_sent(known: PlanInputs, sketch: Sketch | None) -> int:
    """Return the slots whose strata go with the opening; 0 if they come with a verdict."""
    if sketch is None:
        return known.strata_sent(known.partition.ranges)
    return sketch.cells if sketch.stalls else known.strata_sent(sketch.cells)


def _differing(known: PlanInputs, sketch: Sketch | None, changed: int) -> int:
    """Return how many ranges, or cells if there is a sketch, a verdict would say differ."""
    if sketch is None:
        return round(expected_slots(known.partition.ranges, changed))
    return round(expected_slots(sketch.cells, HASHES * changed))


def _stall(sketch: Sketch, differing: int, changed: int, *, sampled_too: bool) -> Stall:
    """Return what the source would hold at its verdict, with a sample if its cells are too full and
    it knows by our strata how many are worth sending (`sampled_too`)."""
    if sketch.decodes(changed):
        return Stall(sketch)
    stall = Stall(sketch, sketch.sent, len(sketch.sent or ()))  # every cell is stuck
    count = sampled(differing, sketch.cells) if sampled_too else 0
    if not count or sketch_size.underestimated(changed, sketch.sent) < sketch_size.ESTIMATE_ERROR:
        return stall
    return replace(stall, sample=CellSample(count, round(count * differing / sketch.cells)))


def expected_slots(slots: int, entries: int) -> float:
    """Return the expected number of slots that are hit by entries scattered evenly (the occupancy
    problem: n(1 - (1 - 1/n)^k))."""
    if slots == 1:
        return float(min(entries, 1))
    return slots * -math.expm1(entries * math.log1p(-1 / slots))


def _seconds(known: PlanInputs, method: Method | None) -> float | None:
    """Return the median seconds of earlier refreshes by this method; of those that found nothing
    if it is None."""
    spent = [
        r.seconds
        for r in known.earlier
        if (r.counts_changes and not r.is_load)
        and (r.changed == 0 if method is None else r.changed > 0 and r.method == method.value)
    ]
    return round(statistics.median(spent), 1) if spent else None


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"

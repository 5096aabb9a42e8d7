"""What a prediction of a refresh depends on, and which rows it compares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from driftline.errors import DriftlineError
from driftline.limits import GROUPED_KEYS_MAX
from driftline.reconciliation.ranges import Partition

from warehouse_agent.planning import choice as plan
from warehouse_agent.planning import chunk_size, group_selection, sketch_size
from warehouse_agent.planning.allowance import Allowance
from warehouse_agent.planning.change_forecast import DayOfChanges, EarlierRefresh
from warehouse_agent.planning.choice import Costs, Method
from warehouse_agent.planning.group_selection import GroupSizes, Histogram
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.network import Line
from warehouse_agent.planning.prices import Prices
from warehouse_agent.planning.tiling import Tiled


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

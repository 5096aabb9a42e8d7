"""Make `PlanInputs`, everything that a prediction depends on, from what was read of a fragment.

A refresh decides by it, and `plan` says what a refresh would decide, so both make it here. No I/O:
what was read comes in, so whoever reads decides what is worth reading. What differs on purpose is
an argument:

 1. *Files.* A refresh compares its working copy, which has rows that cut exchanges staged. `plan`
    reads no row: it has the published files.
 2. *Partition.* Where the noted quantiles of the key are outgrown, a refresh computes others.
    `plan` takes the keys to be spread evenly (`foretold_partition`).
 3. *The source's estimate of its rows.* `plan` asks for it. A refresh asks the source for nothing
    that it can do without, so it has one if it described the relation anyway.
 4. *What the source allows, and its features.* They are None if it was not asked.

`schedule` predicts no exchange, so it makes none of these; it has the same refreshes, out of the
same history (`tests/pair/refresh/test_known.py` compares the three).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from driftline.reconciliation.ranges import Partition
from driftline.values.types import Recipe

from warehouse_agent.change_models import operational_time
from warehouse_agent.columns.layout import Layout
from warehouse_agent.config import Fragment, Proof
from warehouse_agent.history import marks
from warehouse_agent.history.notes import Notes, Quantiles
from warehouse_agent.planning import choice, group_selection, prices, sketch_size
from warehouse_agent.planning.allowance import Allowance
from warehouse_agent.planning.change_forecast import (
    ChangeForecast,
    DayOfChanges,
    EarlierRefresh,
    with_lost,
)
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.marker_state import MarkerState
from warehouse_agent.planning.network import Line, Objective
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.tiling import PassSettings, Tiled
from warehouse_agent.storage import data_files
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.table import Snapshot

AGAIN_BYTES = 32 << 20  # of staged frames: fewer come again rather than that a marker is not used


@dataclass(frozen=True, slots=True)
class Situation:
    """A fragment before a refresh, as it was read: nothing is prepared yet.

    Attributes:
        base: the published version, without its lost files; None: nothing is published.
        recipe: of the next version; None: nobody can tell before the source answers.
        is_other: the columns or rows of the next version may be others than those of `base`.
        notes: of earlier refreshes.
        earlier: the refreshes since the load.
        days: what refreshes since the load found by day, if they were read.
        allowance: what the source allows to be read; None: it did not say.
        marker: as `marker_of`.
        rows_told: the source's estimate of its rows; None: it was not asked, or has none.
    """

    fragment: Fragment
    base: Snapshot | None
    recipe: Recipe | None
    notes: Notes
    earlier: tuple[EarlierRefresh, ...]
    line: Line
    now: datetime
    is_other: bool = False
    allowance: Allowance | None = None
    marker: MarkerState | None = None
    rows_told: int | None = None
    days: tuple[DayOfChanges, ...] = ()

    @property
    def pass_over(self) -> tuple[Snapshot, PassSettings] | None:
        """Return the version that is compared tile by tile, and its tiles; None: one exchange.

        A pass compares a published version: a first load and other columns take one exchange.
        """
        base, wanted = self.base, self.fragment.incremental
        if wanted is None or base is None or self.is_other:
            return None
        return (base, wanted) if any(file.rows for file in base.sound) else None

    @property
    def read_at_most(self) -> int | None:
        """Return how many rows of the source are compared by key; None: all rows are compared.

        All rows are compared if those left out would be missing (a first version, an empty one,
        lost files), lack values of new columns, or fall under policies that no longer apply.
        """
        base = self.base
        if base is None or not base.rows or base.lost or self.is_other:
            return None
        if self.is_by_key:
            return None
        return rows_of_part(self.fragment, self.allowance, self.now)

    @property
    def is_by_key(self) -> bool:
        """Return True if all rows are compared by their keys."""
        return is_by_key(self.fragment, self.base, self.allowance, self.now)

    def known(
        self, files: Sequence[DataFile], partition: Partition, tiled: Tiled | None = None
    ) -> PlanInputs:
        """Return what a prediction depends on.

        Args:
            files: our rows that are compared.
            partition: of their keys.
            tiled: the pass that is begun or resumed; None: it is one exchange.
        """
        base, recipe, rows = self.base, self.recipe, sum(file.rows for file in files)
        lost = 0 if base is None or tiled is not None else rows_lost(base, files)
        line = self.line
        is_torn = base is not None and bool(base.lost)
        if is_torn:  # pull the lost rows, and as few others as possible
            line = replace(line, objective=Objective.BYTES)
        columns = 1 if recipe is None else len(recipe.columns)
        is_load = base is None or not any(file.rows for file in base.sound)
        level = line.level(0 if is_load else rows)
        priced = prices.from_notes(self.notes.prices, columns, level=level)
        if is_torn:  # a price learnt from other rows must not make a full copy look cheap
            priced = replace(priced, copied=max(priced.copied, priced.row))
        told = self.rows_told
        if told is None and lost and base is not None:
            told = base.rows
        return PlanInputs(
            name=self.fragment.name,
            version=None if base is None else base.version,
            rows=rows if base is not None or files else None,
            rows_expected=told,
            prices=priced,
            partition=partition,
            integer_key=recipe is not None and recipe.integer_key,
            bounds=data_files.bounds(files),
            line=line,
            now=self.now,
            forced=self.fragment.method,
            read_at_most=self.read_at_most,
            earlier=self.earlier,
            files=tuple((file.rows, file.size) for file in files),
            tiled=tiled,
            rows_lost=lost,
            named_key_bytes=None
            if recipe is None
            else group_selection.named_key_bytes(recipe, self.notes.turn.key_bytes),
            allowance=self.allowance,
            marker=self.marker,
            is_resumed=base is not None and tiled is None and tuple(files) != base.sound,
            days=self.days,
            zone=self.fragment.time_zone,
            is_load=is_load,
            by_key=self.is_by_key,
            groups=self.notes.turn.groups,
        )


def forecasts(known: PlanInputs) -> tuple[ChangeForecast | None, ChangeForecast | None]:
    """Return the forecast of changed rows, and that of rows that differ, changed and lost ones;
    None: nothing is known."""
    changes = operational_time.changes_expected(
        known.earlier, known.ours, known.now, known.days, zone=known.zone
    )
    return changes, with_lost(changes, known.rows_lost, known.ours)


def is_by_key(
    fragment: Fragment, base: Snapshot | None, allowance: Allowance | None, now: datetime
) -> bool:
    """Return True if a refresh compares all rows of a version by their keys: no scan may begin, and
    the source allows that many rows by key.

    Args:
        base: the published version; None: nothing is published.
        allowance: what the source allows; None: it did not say.
    """
    if base is None or not base.rows or allowance is None or not allowance.covers(base.rows, now):
        return False
    is_proven = fragment.proof in {Proof.TOTAL, Proof.PART} and fragment.read_at_most is None
    has_order = group_selection.named_key_bytes(base.layout.recipe, None) is not None
    return _may_group(fragment) and is_proven and has_order


def _may_group(fragment: Fragment) -> bool:
    """Return True if a fragment asks for no other way than groups."""
    return fragment.method in {None, Method.GROUP} and fragment.incremental is None


def rows_of_part(fragment: Fragment, allowance: Allowance | None, now: datetime) -> int | None:
    """Return how many rows of a published version a refresh compares by key; None: all of them.

    allowance: what the source allows; None: it did not say.
    """
    if fragment.proof is not Proof.PART or not _may_group(fragment):
        return None
    if allowance is None:
        return fragment.read_at_most
    return allowance.part(fragment.read_at_most, now)


def rows_lost(base: Snapshot, files: Sequence[DataFile]) -> int:
    """Return the number of lost rows that a comparison of `files` must find.

    Rows outside the bounds of the files' integer keys are not counted: the source sends them
    anyway.
    """
    ends = data_files.bounds(files)
    if ends is None or sketch_size.embedding_for(max(base.rows, 1), ends).base is None:
        return base.rows_lost
    return sum(file.rows for file in base.lost if file.meets(*ends))


def marker_of(
    fragment: Fragment,
    base: Snapshot | None,
    notes: Notes,
    *,
    features: Collection[str] | None,
    staged_bytes: int,
    is_trusted: bool = False,
    withdrawn: str = "",
) -> MarkerState | None:
    """Return what is known of the marker; None: all rows are to be proven.

    Rows that unfinished exchanges staged may be of another relation, database or instant, and only
    a comparison of all rows would notice: a refresh by a marker compares keys, and an audit is of
    the version as it stands. Few are dropped, and come again. Many, and those that replace lost
    files, are kept for the sake of progress, and the mark is not used.

    Args:
        features: of the source; None: they are not known.
        staged_bytes: of frames of unfinished exchanges.
        is_trusted: somebody confirms the marker, whatever audits found.
        withdrawn: why the mark is not used, for another reason; empty: there is none.
    """
    if not fragment.proof.accepts_marker:
        return None
    state = marks.state(
        notes.marking(base),
        notes.keys_per_s,
        audit_s=fragment.audit_s,
        features=features,
        is_trusted=is_trusted,
        claims=fragment.proof is Proof.CLAIMED,
    )
    if withdrawn:
        return replace(state, mark=b"", why=withdrawn)
    if base is None or not state.mark or staged_bytes <= (0 if base.lost else AGAIN_BYTES):
        return state
    return replace(state, mark=b"", why="rows that a cut exchange staged are compared again")


def noted_knots(
    noted: Quantiles | None, layout: Layout, rows: int, bounds: tuple[int, int] | None
) -> list[int] | None:
    """Return the noted quantiles of the integer keys; None: those of now are not known.

    Args:
        rows, bounds: of our rows now.
    """
    is_of_key = noted is not None and noted.key == layout.names[0]
    knots, counted = ([*noted.positions], noted.rows) if noted and is_of_key else ([], 0)
    return None if choice.outgrown(knots, counted, rows, bounds) else knots


def foretold_partition(
    noted: Quantiles | None, layout: Layout | None, files: Sequence[DataFile]
) -> Partition:
    """Return about the partition that a refresh makes of the published files, without a read.

    Where the noted quantiles are outgrown, the keys are taken to be spread evenly.

    Args:
        layout: of the files; None: there are none.
    """
    rows, bounds, knots = sum(file.rows for file in files), data_files.bounds(files), list[int]()
    if layout is not None and layout.recipe.integer_key and rows:
        usable = noted_knots(noted, layout, rows, bounds)
        knots = even_knots(bounds) if usable is None else usable
    return choice.partition_for(knots, rows, integer_key=bool(knots))


def even_knots(bounds: tuple[int, int] | None) -> list[int]:
    """Return the quantiles of integer keys that are spread evenly; none if no bounds are known."""
    if bounds is None:
        return []
    first, last = bounds
    return [first + (last - first) * i // choice.QUANTILES for i in range(choice.QUANTILES + 1)]

"""The group method's opening: put all of our rows into groups, or the part that a budget allows.

A part has the rows most likely to have changed, the next rows in key order after the last part, so
that every row has its turn, and room for rows after the largest key.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np
from driftline.errors import LimitExceeded
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN

from warehouse_agent.history.notes import NextPartNote
from warehouse_agent.methods.groups import assignment, key_parts
from warehouse_agent.methods.groups import shards as sharded
from warehouse_agent.methods.groups.assignment import PartRows, RowsInPositions
from warehouse_agent.methods.groups.exchange import GroupedRows, GroupSide, PartLimits
from warehouse_agent.methods.groups.shards import ShardedSide, ShardScope
from warehouse_agent.methods.interface import Offers, Priced, WorkingCopy
from warehouse_agent.planning import group_selection, group_shards, sketch_size
from warehouse_agent.planning.candidates import in_groups, in_part, p_delete
from warehouse_agent.planning.change_forecast import ChangeForecast
from warehouse_agent.planning.choice import NAMES, Method
from warehouse_agent.planning.group_selection import Histogram, PartBudget
from warehouse_agent.planning.plan_inputs import Part, PlanInputs, Whole
from warehouse_agent.storage import data_files


class GroupOpening:
    """Open with groups: of all rows where the configuration asks for it, or of a part."""

    method, stalls = Method.GROUP, False

    def supports(self, known: PlanInputs) -> bool:
        return bool(known.rows) and isinstance(known.scope, Whole | Part)

    def price(
        self, known: PlanInputs, expected: ChangeForecast | None, changed: int, offers: Offers
    ) -> Priced:
        ours, scope = known.rows or 0, known.scope
        if isinstance(scope, Part):
            compared = min(scope.rows_max, ours)
            part = in_part(known, scope, expected, max(changed * compared // max(ours, 1), 1))
            return (part,), part.what
        if known.forced is self.method and known.named_key_bytes is None:
            group_selection.refuse_too_many(known.name, ours)
        return in_groups(known, expected, changed), NAMES[self.method]

    def plan(self, known: PlanInputs, expected: ChangeForecast | None) -> GroupScanPlan:
        scope = known.scope
        rows_max = scope.rows_max if isinstance(scope, Part) else None
        wait_bytes, deleted = known.line.round_trip_bytes, p_delete(known, expected)
        key = known.named_key_bytes
        limit = (known.allowance.rows_by_key if known.allowance else None) or sharded.ROWS_MAX
        return GroupScanPlan(
            known.prices.row,
            wait_bytes,
            rows_max,
            deleted,
            key,
            limit,
            known.in_shards,
            known.likely,
        )


@dataclass(frozen=True, slots=True)
class GroupScanPlan:
    """Bytes of a row and of a round trip, by which groups are sized; `rows_max` is the budget of a
    part, None where all rows are compared; `p_delete` is the probability that a row is deleted;
    `named_key_bytes` are those of a key that travels itself, None: keys have no order; `limit` is
    the most rows that may be read by key; `by_key`: all are, however few; `likely` are
    the rows by their likelihood of an update, None: their statistics were not read."""

    row_bytes: float
    wait_bytes: float
    rows_max: int | None
    p_delete: float = 0.0
    named_key_bytes: float | None = None
    limit: int = sharded.ROWS_MAX
    by_key: bool = False
    likely: Histogram | None = None

    def reduce(self, copy: WorkingCopy) -> GroupSide | ShardedSide:
        """Put the working copy into groups; two to four steps. More rows than an exchange can name
        are divided into shards, if their keys have an order.

        Raises:
            ConfigurationError: more keys than groups can name, or a part of a table, and their keys
                have no order.
            LimitExceeded: the rows cannot be divided into shards.
        """
        bounds = data_files.bounds(copy.files)
        embedding = sketch_size.embedding_for(copy.rows, bounds)
        place = (copy.steps, copy.files, copy.layout, copy.outlook)
        counted = self.likely or assignment.histogram(*place)
        compared = copy.rows if self.rows_max is None else min(self.rows_max, copy.rows)
        is_many = self.by_key or compared > group_shards.KEYS_MAX
        is_sharded = is_many and self.named_key_bytes is not None
        is_by_key = is_sharded or (self.rows_max is not None and embedding.base is None)
        key = group_selection.key_bytes(copy.rows, embedding.span)
        if is_by_key:
            if self.named_key_bytes is None:
                raise group_selection.unfit_key(copy.name)
            key = self.named_key_bytes
        grouping = group_selection.grouping(
            counted,
            row_bytes=self.row_bytes,
            key_bytes=key,
            wait_bytes=self.wait_bytes,
            p_delete=self.p_delete,
        )
        costs = round(self.row_bytes), round(self.wait_bytes)
        part, part_of, turn = None, None, NextPartNote()
        if self.rows_max is None:
            if is_sharded:
                grouping = replace(grouping, rows=np.maximum(grouping.rows, 1))
                return sharded.reduce(copy, grouping, ShardScope(), costs, rows_max=self.limit)
            group_selection.refuse_too_many(copy.name, copy.rows)
        else:
            budget = budget_of(self.rows_max, is_by_key=is_by_key)
            likeliest = group_selection.most_likely(counted, budget.likeliest)
            # All compared rows are read by their keys, so each is in a group.
            grouping = replace(grouping, rows=np.maximum(grouping.rows, 1))
            if is_by_key:
                near = key_parts.window_of(copy, budget.in_turn)
                part = PartRows(likeliest, near.inside)
                if not is_sharded:
                    with contextlib.suppress(LimitExceeded):  # their keys are too long
                        limit = self.rows_max
                        return key_parts.reduce(copy, grouping, part, near, costs, rows_max=limit)
                chosen = ShardScope(part, near)
                return sharded.reduce(copy, grouping, chosen, costs, rows_max=self.rows_max)
            assert bounds is not None, "keys embed from a base only where all files have bounds"
            window, following = _window(copy, bounds, budget.in_turn)
            turn = NextPartNote(position=following)
            part, part_of = (
                PartRows(likeliest, RowsInPositions(*window)),
                _part_of(window, bounds, self.rows_max),
            )
        rule = assignment.AssignmentRule(grouping, embedding, copy.salt, part)
        found = assignment.assign(*place, rule)
        grouped = GroupedRows(embedding, found.pieces, found.ungrouped, *costs, part_of)
        turn = replace(turn, groups=grouped.measured(found.compared.count))
        return GroupSide(grouped, found.compared, copy, found.rest, turn, found.updates_left)


def budget_of(rows_max: int, *, is_by_key: bool) -> PartBudget:
    """Return the rows that a part reads; `is_by_key`: keys travel themselves."""
    in_turn_max = key_parts.KEYS_IN_TURN_MAX if is_by_key else None
    return PartBudget.of(rows_max, in_turn_max=in_turn_max)


def _part_of(window: tuple[int, int], bounds: tuple[int, int], rows_max: int) -> PartLimits:
    """Return the positions that a part reads: the window, and all after the largest key."""
    zones = [window, (bounds[1] + 1, POSITION_MAX)] if bounds[1] < POSITION_MAX else [window]
    first, last = (np.array(ends, np.int64) for ends in zip(*zones, strict=True))
    return PartLimits(first, last, rows_max)


def _window(copy: WorkingCopy, bounds: tuple[int, int], count: int) -> tuple[tuple[int, int], int]:
    """Return the next `count` rows in turn and where the next turn begins.

    The window is a first and a last position, both inclusive. After the largest key the turn begins
    again at the least one. The first window includes all positions before the least key, because
    new rows may lie there.
    """
    noted = copy.turn.position
    start = noted if noted is not None and bounds[0] < noted <= bounds[1] else bounds[0]
    end = assignment.window_end(copy.steps, copy.files, copy.layout, start, count)
    last = bounds[1] if end is None else end
    first = POSITION_MIN if start == bounds[0] else start
    return (first, last), last + 1 if last < bounds[1] else POSITION_MIN

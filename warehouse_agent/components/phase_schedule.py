"""Decide when the fragments of a component, and its views, are shown to readers; without I/O.

Between refreshes, fragments may run ahead of the flip: `chunk_rows` says how many changed rows are
gathered before a view phase is worth its time, `max_lag` how long readers may be kept waiting.
Within a command, the changes of a source may be shown while other sources are still compared. Both
ask one question at a boundary where no half transaction shows: is the view phase due now?

Invariant: if refreshes come as regularly as before, no change is older than `max_lag` when a phase
ends that takes as long as expected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from warehouse_agent.components.staleness import PhaseCost, best_phases

PHASES_MAX = 1 << 20  # within `max_lag`: more than any refresh can bring


class PhaseReason(Enum):
    """Reasons why a view phase is due, for people."""

    CHUNK = "enough changed rows are gathered"
    LAG = "max_lag would be exceeded before the next refresh"


@dataclass(frozen=True, slots=True)
class PhaseLimits:
    """Limits of the views of a component: the least of each.

    Attributes:
        max_lag_s: seconds for which a change may wait; 0: no refresh ends without its phase.
        chunk_rows: changed rows that are gathered; None: the learned optimum.
    """

    max_lag_s: float
    chunk_rows: int | None


@dataclass(frozen=True, slots=True)
class HeldChanges:
    """Changes that no flip shows: their rows, and since when the oldest of them waits.

    `since`: seconds since 1970.
    """

    rows: int
    since: float


@dataclass(frozen=True, slots=True)
class ExpectedChanges:
    """Changes that are expected, and what a view phase over them takes.

    Attributes:
        base_s: U of Eq. 7: the seconds in which they come.
        rows: c of Eq. 7: changed rows in this time.
        cost: of a view phase; None: none was measured.
        boundaries_max: the most phases that can be made of them.
        next_s: seconds until the next boundary; None: not known.
        next_rows: changed rows that the next boundary brings.
    """

    base_s: float
    rows: float
    cost: PhaseCost | None
    boundaries_max: int = PHASES_MAX
    next_s: float | None = None
    next_rows: float = 0.0

    @property
    def chunk_rows(self) -> float:
        """Return how many changed rows a phase is to propagate (Eq. 7); 0: not known, so any."""
        if self.cost is None or self.rows <= 0 or self.base_s <= 0:
            return 0.0
        return self.rows / best_phases(self.base_s, self.rows, self.cost, self.boundaries_max)

    def phase_s(self, rows: float) -> float:
        """Return the expected seconds of a view phase over `rows`; 0 if none was measured."""
        return 0.0 if self.cost is None else self.cost.seconds(rows)


def reaches_chunk(rows: int, limits: PhaseLimits, stream: ExpectedChanges) -> bool:
    """Return True if enough changed rows are gathered.

    A number is a least. The learned optimum is rounded to the nearer boundary.
    """
    if limits.chunk_rows is not None:
        return rows >= limits.chunk_rows
    return rows + stream.next_rows / 2 >= stream.chunk_rows


def due(
    ahead: HeldChanges, limits: PhaseLimits, stream: ExpectedChanges, now: float
) -> PhaseReason | None:
    """Return why a view phase is due at the end of a refresh; None: it may wait.

    Args:
        stream: the changes within `max_lag`; the next boundary is the next refresh.
        now: seconds since 1970.
    """
    if stream.next_s is None:
        return PhaseReason.LAG
    rows = ahead.rows + stream.next_rows
    if now + stream.next_s + stream.phase_s(rows) > ahead.since + limits.max_lag_s:
        return PhaseReason.LAG
    return PhaseReason.CHUNK if reaches_chunk(ahead.rows, limits, stream) else None


def is_due_within(
    rows: int, limits: PhaseLimits, stream: ExpectedChanges, *, left_s: float, left_rows: float
) -> bool:
    """Return True if a view phase is due while other sources of the command are compared.

    Beside the chunk, the phase must pay for itself. Shown now, `rows` gain the time until the
    others are proven, and the others' phase; the others wait for one more fixed part. In Eq. 7 this
    is VS_2 < VS_1. A phase whose fixed part takes longer than what is left is not worth it.

    Args:
        rows: gathered at the boundary.
        stream: the changes of the command; a boundary is the end of a source.
        left_s: expected seconds until the others are proven.
        left_rows: changed rows that are expected of them.
    """
    if rows <= 0 or not reaches_chunk(rows, limits, stream):
        return False
    if limits.chunk_rows is not None:
        return True
    if (cost := stream.cost) is None or left_s <= cost.fixed_s:
        return False
    return rows * (left_s + cost.row_s * left_rows) > left_rows * cost.fixed_s


def cut(
    waiting: Collection[str],
    held: Collection[str],
    source_of: Mapping[str, str],
    fuzzy: Collection[str],
) -> set[str]:
    """Return the fragments, of those that are held, which a flip may show now.

    Fragments of one source share a snapshot: some of them alone would show half a transaction. So
    either none of a source is waited for, or its fragments say that they need no snapshot.

    Args:
        waiting: names of fragments that are still compared.
        held: names of those that are proven.
        source_of: the source of each.
        fuzzy: sources all of whose fragments have `require = "fuzzy"`.
    """
    is_open = {source_of[name] for name in waiting}.difference(fuzzy)
    return {name for name in held if source_of[name] not in is_open}


def chunk_rows(limits: PhaseLimits, stream: ExpectedChanges) -> int:
    """Return how many changed rows are gathered before a phase is due."""
    return math.ceil(stream.chunk_rows) if limits.chunk_rows is None else limits.chunk_rows

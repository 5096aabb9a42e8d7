"""How stale a view is, and how many view phases make it least so, without I/O.

Labrinidis and Roussopoulos (MAUVE), section 3. For each changed row: T_b, its fragment's files are
proven; T_v, the flip that shows it in the view; T_eb = T_b minus the earlier view phases of the
command, which kept it waiting. S1 = T_b - T_eb, S2 = T_v - T_b, VS = S1 + S2 (Eq. 4), averaged over
changed rows.

A view phase over r changed rows takes V = a + b·r seconds. With n phases over c rows, whose base
tables take U seconds, V_n = a + b·c/n in Eq. 7 gives

    VS_n = (U + b·c) / (2n) + a·n / 2 + (a + b·c) / 2,

which is convex in n and least at n* = sqrt((U + b·c) / a).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

FIXED_S_MIN = 0.001  # of a phase: a flip alone takes milliseconds, and n* divides by it


@dataclass(frozen=True, slots=True)
class ProvenBatch:
    """Changed rows of a fragment that were proven together.

    Attributes:
        rows: inserted, updated and deleted ones; 0 where it is not known.
        proven_at: T_b, in seconds since 1970.
        delay_s: seconds of earlier view phases of the command: T_b - T_eb.
    """

    rows: int
    proven_at: float
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """Staleness averaged over `rows` changed rows, in seconds (Eq. 4)."""

    rows: int
    s1_s: float
    s2_s: float

    @property
    def vs_s(self) -> float:
        """Return VS = S1 + S2."""
        return self.s1_s + self.s2_s

    def merged(self, other: Staleness) -> Staleness:
        """Return the average over the rows of both."""
        rows = self.rows + other.rows
        s1 = (self.s1_s * self.rows + other.s1_s * other.rows) / rows
        s2 = (self.s2_s * self.rows + other.s2_s * other.rows) / rows
        return Staleness(rows, s1, s2)


def measured(batches: Iterable[ProvenBatch], flipped_at: float) -> Staleness | None:
    """Return the staleness of batches that one flip shows; None without a changed row.

    Args:
        flipped_at: T_v, in seconds since 1970. A batch proven later, by a clock that was set back,
            counts as proven then.
    """
    known = [batch for batch in batches if batch.rows > 0]
    rows = sum(batch.rows for batch in known)
    if not rows:
        return None
    s1 = sum(batch.rows * batch.delay_s for batch in known) / rows
    s2 = sum(batch.rows * max(flipped_at - batch.proven_at, 0.0) for batch in known) / rows
    return Staleness(rows, s1, s2)


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Seconds of a view phase: `fixed_s` (a), and `row_s` (b) for each changed row."""

    fixed_s: float
    row_s: float

    def seconds(self, rows: float) -> float:
        """Return the expected seconds of a phase over `rows` changed rows."""
        return self.fixed_s + self.row_s * rows


def learned(phases: Sequence[tuple[int, float]]) -> PhaseCost | None:
    """Return the cost of a view phase from earlier ones; None without any.

    A phase that started Spark, or ran beside something else, is an outlier. So the line has the
    least sum of absolute deviations, of all with a >= FIXED_S_MIN and b >= 0; one of those goes
    through two of the points (or the bounds). Phases over equally many rows tell no slope: then all
    is fixed, which asks for fewer phases.

    Args:
        phases: changed rows and seconds of each.
    """
    if not phases:
        return None
    lines = [PhaseCost(statistics.median(y for _, y in phases), 0.0)]
    for (x1, y1), (x2, y2) in combinations([(0, FIXED_S_MIN), *phases], 2):
        if x1 != x2:
            row_s = (y2 - y1) / (x2 - x1)
            lines.append(PhaseCost(y1 - row_s * x1, row_s))
    allowed = [line for line in lines if line.fixed_s >= FIXED_S_MIN and line.row_s >= 0]
    allowed.append(PhaseCost(FIXED_S_MIN, 0.0))
    return min(allowed, key=lambda line: sum(abs(y - line.seconds(x)) for x, y in phases))


def expected_vs_s(phases: int, base_s: float, rows: float, cost: PhaseCost) -> float:
    """Return VS_n of Eq. 7 in seconds.

    Args:
        phases: n, at least 1.
        base_s: U, seconds that the changes of the base tables take.
        rows: c, changed rows.
    """
    s1, s2 = expected_parts_s(phases, base_s, rows, cost)
    return s1 + s2


def expected_parts_s(
    phases: int, base_s: float, rows: float, cost: PhaseCost
) -> tuple[float, float]:
    """Return S1 and S2 of Eq. 8 in seconds; arguments as for `expected_vs_s`."""
    phase_s = cost.seconds(rows / phases)
    return (phases - 1) * phase_s / 2, base_s / (2 * phases) + phase_s


def best_phases(base_s: float, rows: float, cost: PhaseCost, most: int) -> int:
    """Return the number of view phases, 1 to `most`, for which Eq. 7 is least.

    It is one of the two whole numbers around n*, because VS_n is convex; arguments as for
    `expected_vs_s`.
    """
    ideal = math.sqrt((base_s + cost.row_s * rows) / cost.fixed_s)
    low = min(max(math.floor(ideal), 1), most)
    around = (low, min(low + 1, most))
    return min(around, key=lambda n: expected_vs_s(n, base_s, rows, cost))

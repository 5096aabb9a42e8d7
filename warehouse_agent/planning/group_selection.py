"""Group selection: which rows are compared as one, and what that is expected to cost.

After Lu, Liu, Hyland, sections V.B to V.E, in their symbols: Φ_t, Φ_k, Φ_h are the bytes of a row,
a key and a group's hash; row i stays as it is with p_i = P({*t_i})·P({t}), and a_i = −ln p_i. A
group of n rows with A = Σ a_i is identical on both sides with e^(−A), so its expected benefit is

    EB(n, A) = Φ_t·n·e^(−A) − Φ_k·n − Φ_h

Four repairs of the printed Algorithm 1, which is kept in tests/reference with what it does wrong:
rows come most stable first; a group is judged when it is closed, not at its first row; the last row
and the open group count; and a group is closed at the best benefit *per row*, where n·A·e^(−A)
reaches Φ_h/Φ_t. The benefit of all is Σ EB = Σ n·(EB/n), so EB/n is what to maximise: the paper's
EB per group grows groups until more than half of them have changed (`n_g` in tests/reference).

Row by row (`select_groups` in tests/reference) that is within 0.2 % of dynamic programming from
1,000 rows on.

For a whole table nothing is sorted. Rows in a class of like P({±t}) want groups of one size, so
`plan_groups` needs the histogram alone and a row's group is its rank in its class, in key order and
within the Spark task that has it, divided by that size (`assign`). For 20,000 rows that costs 0.3 %
at most, and about Φ_h for each class of each further task that counts on its own; fewer rows are
better selected. Rejected: buckets by a hash of the key. Their sizes vary like Poisson's, which
costs another a·Φ_t a row, 2 to 8 % in all.

Not here: the protocol of groups, and the probabilities themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.arrays import Floats, Integers
from driftline.errors import ConfigurationError
from driftline.limits import GROUP_KEYS_MAX, UNIT_KEYS_MAX
from driftline.units import ROW_HASH_BYTES

A_MAX: Final = 64.0  # of one row; e^(−64) is never, and sums of it stay exact enough
# What one wrong "never" can cost; Φ_h is then below 0.01 byte a row.
GROUP_ROWS_MAX: Final = UNIT_KEYS_MAX
# Octaves up to 2^−6, below 2^−24 all rows are alike; finer above, where it is decided within a
# class whether a group is worth it.
CLASS_EDGES: Final[Floats] = np.exp2(np.r_[-24:-6:1.0, -6:-3:0.5, -3:0:0.125])

REFINED_BYTES: Final = 8.3  # of a row whose group is refined: its hash, and a bit of the answer
_NEWTON_STEPS = 24  # from the starts below 12 reach the last bit


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on the line: of a row, of a key and of a group's hash (paper, section V.D).

    Where a differing group is refined by row hashes, `phi_t` is the bytes of one row hash.
    """

    phi_t: float
    phi_k: float
    phi_h: float


def exponents(p_update: Floats, p_delete: float) -> Floats:
    """a_i = −ln(P({*t_i})·P({t})), float64 [n], at most A_MAX (paper, section V.C).

    Args:
        p_update: P({±t_i}), float64 [n] in [0, 1].
        p_delete: P({−t}); 0 where a group that lost rows is hashed again without them.
    """
    with np.errstate(divide="ignore"):
        exact: Floats = -np.log1p(-p_update) - np.log1p(-p_delete)
    return np.minimum(exact, A_MAX) + 0.0  # no −0


def expected_benefit(n: npt.ArrayLike, big_a: npt.ArrayLike, sizes: Sizes) -> Floats:
    """EB in bytes of groups of n rows with A = Σ a_i (paper, section V.D; any shape)."""
    n = np.asarray(n, np.float64)
    identical = np.exp(-np.asarray(big_a, np.float64))
    return sizes.phi_t * n * identical - sizes.phi_k * n - sizes.phi_h


def n_star(a: Floats, sizes: Sizes) -> Floats:
    """Rows where EB per *row* peaks: −(2/a)·W(−½·√(a·Φ_h/Φ_t)), float64 [n]; about √(Φ_h/(a·Φ_t)).

    From d(EB/n)/dn = 0. NaN where a > 4·Φ_t/(e²·Φ_h): there is no peak, and no group is worth it.
    """
    x = -0.5 * np.sqrt(a * (sizes.phi_h / sizes.phi_t))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        peak = -2 / a * lambert_w(np.maximum(x, -1 / np.e))
    return np.where(x < -1 / np.e, np.nan, np.where(x == 0, np.inf, peak))


def group_rows(a: Floats, sizes: Sizes) -> Integers:
    """The best whole number of rows for groups of like rows, int64 [n]; 0: not worth a group."""
    peak = np.clip(np.nan_to_num(n_star(a, sizes), posinf=GROUP_ROWS_MAX), 1, GROUP_ROWS_MAX)
    options = np.stack([np.floor(peak), np.ceil(peak)])
    per_row = expected_benefit(options, options * a, sizes) / options
    best = options[np.argmax(per_row, axis=0), np.arange(len(a))]
    return np.where(per_row.max(axis=0) > 0, best, 0).astype(np.int64)


def lambert_w(x: Floats) -> Floats:
    """W of the principal branch, W·e^W = x, for x ≥ −1/e (any shape), to 1e-12; near −1/e 1e-8."""
    q = np.sqrt(np.maximum(2 * (np.e * x + 1), 0))
    w = np.where(x < -0.25, -1 + q - q * q / 3 + 11 / 72 * q**3, np.log1p(np.maximum(x, -0.25)))
    for _ in range(_NEWTON_STEPS):
        slope = np.exp(w) * (w + 1)
        w = w - np.where(w + 1 > 1e-7, (w * np.exp(w) - x) / np.where(slope > 0, slope, 1), 0)
    return w


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many rows are how likely to be updated; class c holds edges[c−1] ≤ P({±t}) < edges[c].

    edges: float64 [classes − 1], ascending. counts: rows, int64 [classes]. updates: Σ P({±t}) of
    these rows, float64 [classes]; edges alone would leave the mean open by a factor of two.
    """

    edges: Floats
    counts: Integers
    updates: Floats

    @classmethod
    def of(cls, p_update: Floats, edges: Floats = CLASS_EDGES) -> Histogram:
        """Of these rows, float64 [n]."""
        at = np.searchsorted(edges, p_update, side="right")
        classes = len(edges) + 1
        counts = np.bincount(at, minlength=classes)
        return cls(edges, counts, np.bincount(at, p_update, classes).astype(np.float64))

    def __add__(self, other: Histogram) -> Histogram:
        assert np.array_equal(self.edges, other.edges)
        return Histogram(self.edges, self.counts + other.counts, self.updates + other.updates)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The size of groups in each class: rows, int64 [classes], 0 where rows are not grouped; and
    whether groups that differ are refined, in a further round trip."""

    edges: Floats
    rows: Integers
    bytes_expected: float
    is_refined: bool = False


def plan_groups(histogram: Histogram, sizes: Sizes, p_delete: float) -> GroupPlan:
    """The best group size of every class and the expected bytes of all rows together.

    The members of a group are any rows of its class, so the group stays identical with the n-th
    power of the class's mean of p_i. Each task that counts on its own adds at most Φ_h a class.
    """
    counts = histogram.counts
    mean = np.minimum(histogram.updates / np.maximum(counts, 1), 1.0)
    a = exponents(mean, p_delete)
    rows = np.minimum(group_rows(a, sizes), counts)
    whole, rest = np.divmod(counts, np.maximum(rows, 1))
    benefit = whole * expected_benefit(rows, rows * a, sizes)
    benefit += np.where(rest > 0, expected_benefit(rest, rest * a, sizes), 0)
    total = sizes.phi_t * counts.sum() - np.where(rows > 0, benefit, 0).sum()
    return GroupPlan(histogram.edges, rows, float(total))


def grouping(
    histogram: Histogram, *, row_bytes: float, key_bytes: float, wait_bytes: float
) -> GroupPlan:
    """The plan of a table's groups: for shipping differing groups whole, or for refining them by
    row hashes at the price of a round trip, whichever is expected to be cheaper. No factor for
    deletions: a group that lost rows is hashed again without them.

    Args:
        row_bytes, key_bytes: of a row and of a key on the line.
        wait_bytes: what the line could carry during a round trip.
    """
    hash_bytes = float(ROW_HASH_BYTES)
    whole = plan_groups(histogram, Sizes(row_bytes, key_bytes, hash_bytes), 0.0)
    sizes = Sizes(REFINED_BYTES, key_bytes, hash_bytes)
    counts, updates = histogram.counts, histogram.updates
    mean = np.minimum(updates / np.maximum(counts, 1), 1.0)
    a = exponents(mean, 0.0)

    def each(n: Integers) -> Floats:
        differ = -np.expm1(-n * a)
        return key_bytes + hash_bytes / n + differ * REFINED_BYTES + mean * row_bytes

    # In a group, alone, or shipped: a group that refines best may be dearer than its rows.
    grouped = plan_groups(histogram, sizes, 0.0).rows
    ways = np.stack([np.maximum(grouped, 1), np.ones_like(grouped), np.zeros_like(grouped)])
    costs = np.stack([each(ways[0]), each(ways[1]), np.full(len(counts), row_bytes)])
    best = np.argmin(costs, axis=0), np.arange(len(counts))
    rows = ways[best]
    cost = float((counts * costs[best]).sum())
    if whole.bytes_expected <= cost + wait_bytes:
        return whole
    return GroupPlan(histogram.edges, rows, cost, is_refined=True)


def key_bytes(rows: int, span: int) -> float:
    """Of a key in a list of so many of `span`, which costs what the differences cost."""
    return (math.log2(max(span / max(rows, 1), 1)) + 1.6) / 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a part compares for their likelihood: those of the classes from `least` on, and
    this share of the class below."""

    least: int
    share: float


def most_likely(histogram: Histogram, rows: int) -> Selection:
    """About so many of the rows that are most likely to have changed."""
    left = rows
    for at in range(len(histogram.counts) - 1, -1, -1):
        count = int(histogram.counts[at])
        if count > left:
            return Selection(at + 1, left / count)
        left -= count
    return Selection(0, 0.0)


def refuse_too_many(name: str, keys: int) -> None:
    """Raise ConfigurationError where a fragment has more rows than groups can name."""
    if keys > GROUP_KEYS_MAX:
        raise ConfigurationError(
            f"Groups name at most {GROUP_KEYS_MAX:,} rows by their keys, and these are {keys:,}.",
            where=name,
            remedy="Change `method` of the fragment: a sketch has no such limit.",
        )

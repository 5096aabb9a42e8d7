"""Group selection: which rows are compared as one, and what that is expected to cost.

After Lu, Liu and Hyland, sections V.B to V.E, in their symbols: Φ_t, Φ_k, Φ_h are the bytes of a
row, a key and a group's hash; row i is unchanged with p_i = P({*t_i})·P({t}), and a_i = −ln p_i. A
group of n rows with A = Σ a_i is identical on both sides with e^(−A), so its expected benefit is

    EB(n, A) = Φ_t·n·e^(−A) − Φ_k·n − Φ_h

The printed Algorithm 1, with its faults, is in tests/reference. It is repaired in four ways: rows
are sorted by stability; a group is judged when it is closed, not at its first row; the last row
and the open group count; and a group is closed at the best benefit *per row*, where n·A·e^(−A)
reaches Φ_h/Φ_t, because the total is Σ n·(EB/n) (the paper's EB per group grows groups until more
than half have changed). Row by row (`select_groups` in tests/reference) that is within 0.2 % of
dynamic programming from 1,000 rows on.

A whole table is not sorted. Rows of a class of similar P({±t}) have one best group size, so
`plan_groups` needs only the histogram; the group of a row is its rank in its class, in key order
and within its Spark task, divided by that size (`methods.groups.assignment`). For 20,000 rows that
costs at most 0.3 % more, and about Φ_h for each class of each further task. Rejected: buckets by a
hash of the key, whose sizes have a Poisson distribution, which costs another a·Φ_t a row, 2 to 8 %
in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from driftline.arrays import Floats, Integers
from driftline.errors import ConfigurationError
from driftline.limits import GROUPED_KEYS_MAX, KEYS_PER_GROUP_MAX
from driftline.reconciliation.groups import ROW_HASH_BYTES
from driftline.rows import key_order
from driftline.values.types import Recipe

A_MAX: Final = 64.0  # of one row; e^(−64) is never, and sums of it stay exact enough
GROUP_ROWS_MAX: Final = KEYS_PER_GROUP_MAX  # lost by one wrong "never"; Φ_h < 0.01 byte a row
# One class below 2^−24, octaves up to 2^−6, and finer classes above, because there some rows of a
# class are worth a group and others are not.
CLASS_EDGES: Final[Floats] = np.exp2(np.r_[-24:-6:1.0, -6:-3:0.5, -3:0:0.125])

TEXT_KEY_BYTES: Final = 6  # of a text among its neighbours, until one was measured
REFINED_BYTES: Final = 8.3  # of a row whose group is refined: its hash, and a bit of the answer
LIKELIEST, IN_TURN = 0.6, 0.25  # shares of the rows of a part; the rest is for new rows
_ALIKE = 2  # times as many rows, for which what a comparison measured still holds
SURE: Final = 0.999  # the probability of an update, at most
_NEVER = 1e-300  # updates, of rows that are not updated
_NEWTON_STEPS = 24  # 12 steps reach the last bit from the starts that `lambert_w` takes


@dataclass(frozen=True, slots=True)
class ByteSizes:
    """Bytes on the line of a row, or of one row hash if differing groups are refined by them; of a
    key; and of a group's hash (paper, section V.D)."""

    phi_t: float
    phi_k: float
    phi_h: float


def exponents(p_update: Floats, p_delete: float) -> Floats:
    """Return a_i = −ln(P({*t_i})·P({t})), float64 [n], at most A_MAX (paper, section V.C).

    Args:
        p_update: P({±t_i}), float64 [n] in [0, 1].
        p_delete: P({−t}); 0 if a group that lost rows is hashed again without them.
    """
    with np.errstate(divide="ignore"):
        exact: Floats = -np.log1p(-p_update) - np.log1p(-p_delete)
    return np.minimum(exact, A_MAX) + 0.0  # no −0


def expected_benefit(n: npt.ArrayLike, big_a: npt.ArrayLike, sizes: ByteSizes) -> Floats:
    """Return EB in bytes for groups of n rows with A = Σ a_i (paper, section V.D; any shape)."""
    n = np.asarray(n, np.float64)
    identical = np.exp(-np.asarray(big_a, np.float64))
    return sizes.phi_t * n * identical - sizes.phi_k * n - sizes.phi_h


def n_star(a: Floats, sizes: ByteSizes) -> Floats:
    """Return the rows at which EB per row peaks, −(2/a)·W(−½·√(a·Φ_h/Φ_t)), float64 [n], about
    √(Φ_h/(a·Φ_t)).

    From d(EB/n)/dn = 0. NaN if a > 4·Φ_t/(e²·Φ_h): there is no peak, and no group is worth it.
    """
    x = -0.5 * np.sqrt(a * (sizes.phi_h / sizes.phi_t))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        peak = -2 / a * lambert_w(np.maximum(x, -1 / np.e))
    return np.where(x < -1 / np.e, np.nan, np.where(x == 0, np.inf, peak))


def group_rows(a: Floats, sizes: ByteSizes) -> Integers:
    """Return the best number of rows for groups of like rows, int64 [n]; 0: not worth a group."""
    peak = np.clip(np.nan_to_num(n_star(a, sizes), posinf=GROUP_ROWS_MAX), 1, GROUP_ROWS_MAX)
    options = np.stack([np.floor(peak), np.ceil(peak)])
    per_row = expected_benefit(options, options * a, sizes) / options
    best = options[np.argmax(per_row, axis=0), np.arange(len(a))]
    return np.where(per_row.max(axis=0) > 0, best, 0).astype(np.int64)


def lambert_w(x: Floats) -> Floats:
    """Return W of the principal branch, W·e^W = x, for x ≥ −1/e (any shape), to 1e-12, near −1/e
    to 1e-8 (Newton's method)."""
    q = np.sqrt(np.maximum(2 * (np.e * x + 1), 0))
    w = np.where(x < -0.25, -1 + q - q * q / 3 + 11 / 72 * q**3, np.log1p(np.maximum(x, -0.25)))
    for _ in range(_NEWTON_STEPS):
        slope = np.exp(w) * (w + 1)
        w = w - np.where(w + 1 > 1e-7, (w * np.exp(w) - x) / np.where(slope > 0, slope, 1), 0)
    return w


def class_of(p_update: Floats) -> Integers:
    """Return the class c of each row, CLASS_EDGES[c−1] ≤ P({±t}) < CLASS_EDGES[c], int64 [n]."""
    return np.searchsorted(CLASS_EDGES, p_update, side="right")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Rows by class of their probability of an update.

    counts: rows, int64 [classes]. updates: Σ P({±t}) of these rows, float64 [classes]; the edges of
    a class alone would leave its mean open by a factor of two.
    """

    counts: Integers
    updates: Floats

    @classmethod
    def of(cls, p_update: Floats) -> Histogram:
        """Build the histogram of rows from their P({±t}), float64 [n]."""
        at, classes = class_of(p_update), len(CLASS_EDGES) + 1
        updates = np.bincount(at, p_update, classes).astype(np.float64)
        return cls(np.bincount(at, minlength=classes), updates)

    @classmethod
    def even(cls, rows: int, p_update: float) -> Histogram:
        """Build the histogram of `rows` rows that all have one P({±t})."""
        one = cls.of(np.full(1, min(p_update, 1.0)))
        return cls(one.counts * rows, one.updates * rows)

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts, self.updates + other.updates)

    def calibrated(self, updates: float) -> Histogram:
        """Return the same rows if `updates` of them are expected to be updated: each class by its
        share. P({±t}) of a row that every refresh updates is 0.63 at most, because updates are
        taken to be independent events, of which a refresh counts one."""
        total = max(float(self.updates.sum()), _NEVER)
        scaled = np.minimum(self.updates * (updates / total), self.counts * SURE)
        return Histogram(self.counts, scaled)

    @property
    def means(self) -> Floats:
        """The mean P({±t}) of each class, float64 [classes]."""
        return np.minimum(self.updates / np.maximum(self.counts, 1), 1.0)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The size of groups in each class: rows, int64 [classes], 0 if rows are not grouped. If
    `is_refined`, groups that differ are refined in a further round trip."""

    rows: Integers
    bytes_expected: float
    is_refined: bool = False


def plan_groups(histogram: Histogram, sizes: ByteSizes, p_delete: float) -> GroupPlan:
    """Return the best group size of every class, and the expected bytes of all rows together, if a
    group is unchanged with the n-th power of its class's mean of p_i."""
    counts = histogram.counts
    a = exponents(histogram.means, p_delete)
    rows = np.minimum(group_rows(a, sizes), counts)
    whole, rest = np.divmod(counts, np.maximum(rows, 1))
    benefit = whole * expected_benefit(rows, rows * a, sizes)
    benefit += np.where(rest > 0, expected_benefit(rest, rest * a, sizes), 0)
    total = sizes.phi_t * counts.sum() - np.where(rows > 0, benefit, 0).sum()
    return GroupPlan(rows, float(total))


def grouping(
    histogram: Histogram,
    *,
    row_bytes: float,
    key_bytes: float,
    wait_bytes: float,
    p_delete: float = 0.0,
) -> GroupPlan:
    """Return the cheaper plan of a table's groups: to ship differing groups whole, or to refine
    them by row hashes for a round trip more.

    A deletion costs its key. Where groups are shipped whole, a group that lost rows is shipped too;
    where they are refined, it costs one hash, of the group without them (regrouping; paper,
    section VI).

    Args:
        row_bytes, key_bytes: of a row and of a key on the line.
        wait_bytes: that the line could carry during a round trip.
        p_delete: P({−t}), the probability that a row is deleted.
    """
    hash_bytes = float(ROW_HASH_BYTES)
    whole = plan_groups(histogram, ByteSizes(row_bytes, key_bytes, hash_bytes), p_delete)
    deleted = float(histogram.counts.sum()) * p_delete  # named, and not shipped with their groups
    spent = whole.bytes_expected + deleted * (key_bytes - row_bytes)
    whole = replace(whole, bytes_expected=spent)
    sizes = ByteSizes(REFINED_BYTES, key_bytes, hash_bytes)
    counts, mean = histogram.counts, histogram.means
    a = exponents(mean, 0.0)

    def each(n: Integers) -> Floats:
        """Return the bytes of a row in groups of n, float64 [classes]."""
        differ, lost = -np.expm1(-n * a), -np.expm1(n * math.log1p(-p_delete)) / n
        updated = differ * REFINED_BYTES + mean * row_bytes
        named: Floats = key_bytes * (1 + p_delete) + hash_bytes * (1 / n + lost)
        return named + updated

    # In a group, alone, or shipped: the best group may cost more than its rows.
    grouped = plan_groups(histogram, sizes, 0.0).rows
    ways = np.stack([np.maximum(grouped, 1), np.ones_like(grouped), np.zeros_like(grouped)])
    costs = np.stack(
        [each(ways[0]), each(ways[1]), np.full(len(counts), row_bytes * (1 - p_delete))]
    )
    best = np.argmin(costs, axis=0), np.arange(len(counts))
    rows = ways[best]
    cost = float((counts * costs[best]).sum())
    if whole.bytes_expected <= cost + wait_bytes:
        return whole
    return GroupPlan(rows, cost, is_refined=True)


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The groups of a comparison, by which one is priced.

    Attributes:
        compared: rows, of which `alone` are in no group: they come, changed or not.
        groups: into which the others are put.
        key_bytes: of a compared row's key in the lists that are sent.
        is_named: keys travel themselves.
    """

    compared: int
    groups: int
    alone: int
    key_bytes: float
    is_named: bool = False

    def for_rows(self, rows: int, *, is_named: bool) -> GroupSizes | None:
        """Return what is expected of `rows` rows by these, of an earlier comparison; None: it was
        of another kind, or of a part where all rows are compared now."""
        is_alike = rows <= _ALIKE * self.compared and self.compared <= _ALIKE * rows
        if not is_alike or is_named != self.is_named:
            return None
        return self.scaled(rows)

    def scaled(self, rows: int) -> GroupSizes:
        """Return as many groups for `rows` rows as these are for theirs."""
        by = rows / self.compared
        return replace(
            self, compared=rows, groups=round(self.groups * by), alone=round(self.alone * by)
        )

    def classed(self) -> ClassedGroups:
        """Return these groups, of one size, whose rows are equally likely to change."""
        named = max(self.compared - self.alone, self.groups, 1)
        counts = np.array([named if self.groups else 0, self.alone])
        rows = np.array([named / self.groups if self.groups else 0.0, 0.0])
        updates = np.array([named, 0.0])
        return ClassedGroups(Histogram(counts, updates), rows, self.key_bytes, self.compared)


@dataclass(frozen=True, slots=True)
class ClassedGroups:
    """The groups of a comparison, by classes of rows that are equally likely to change.

    Attributes:
        histogram: of the rows; only the shares of `updates` count.
        rows: of a group of each class, float64 [classes], 0: the rows are in none.
        key_bytes: of a compared row's key in the lists that are sent.
        compared: rows.
    """

    histogram: Histogram
    rows: Floats
    key_bytes: float
    compared: int

    @property
    def groups(self) -> float:
        """The number of groups."""
        return float(self._each.sum())

    @property
    def alone(self) -> int:
        """The number of rows in no group: they come, changed or not."""
        return int(self.histogram.counts[self.rows == 0].sum())

    @property
    def _each(self) -> Floats:
        """The groups of each class, float64 [classes]."""
        return np.where(self.rows > 0, self.histogram.counts / np.maximum(self.rows, 1), 0)

    def touched(self, updated: float, deleted: float) -> TouchedGroups:
        """Return what `updated` and `deleted` rows touch: updates by the shares of the classes,
        deletions of any row alike."""
        total = max(float(self.histogram.updates.sum()), _NEVER)
        p = np.minimum(self.histogram.updates / total * updated, self.histogram.counts)
        p = p / np.maximum(self.histogram.counts, 1)
        q = np.full_like(p, min(deleted / max(self.compared, 1), 1.0))
        grouped, each = np.where(self.rows > 0, self.histogram.counts, 0), self._each
        updates = 1 - np.power(1 - p, self.rows)
        losses = 1 - np.power(1 - q, self.rows)
        both = 1 - (1 - updates) * (1 - losses)
        return TouchedGroups(
            rows=float(grouped @ both),
            updated=float(grouped @ p),
            rows_updated=float(grouped @ updates),
            groups_updated=float(each @ updates),
            groups_lost=float(each @ losses),
        )


@dataclass(frozen=True, slots=True)
class TouchedGroups:
    """Expected numbers of a comparison by groups.

    Attributes:
        rows: in groups that differ.
        updated: rows in groups that were updated.
        rows_updated: rows in groups in which a row was updated.
        groups_updated, groups_lost: groups in which a row was updated, or deleted.
    """

    rows: float
    updated: float
    rows_updated: float
    groups_updated: float
    groups_lost: float


def key_bytes(rows: int, span: int) -> float:
    """Return the bytes of a key in a list of `rows` keys out of `span`, coded as differences."""
    return (math.log2(max(span / max(rows, 1), 1)) + 1.6) / 8


def named_key_bytes(recipe: Recipe, measured: float | None) -> float | None:
    """Return the bytes of a key that travels itself, in the key order of many.

    None if the key has no order that both sides compute. An integer key travels itself only where
    k cannot name its rows: if its values span more than 2^31, or in shards.

    Args:
        measured: by an earlier refresh; None: it never was.
    """
    if key_order.unordered(recipe) is not None:
        return None
    guess = sum(column.type.width or TEXT_KEY_BYTES for column in recipe.key)
    return measured or float(guess)


@dataclass(frozen=True, slots=True)
class PartSelection:
    """The rows that a part compares because they are likely to have changed: those of the classes
    from `least` on, and a `share` of the class below."""

    least: int
    share: float


def most_likely(histogram: Histogram, rows: int) -> PartSelection:
    """Select about `rows` rows that are most likely to have changed."""
    left = rows
    for at in range(len(histogram.counts) - 1, -1, -1):
        count = int(histogram.counts[at])
        if count > left:
            return PartSelection(at + 1, left / count)
        left -= count
    return PartSelection(0, 0.0)


@dataclass(frozen=True, slots=True)
class PartBudget:
    """Rows that a part reads: those most likely to have changed, the next ones in key order after
    the last part, and new rows behind the greatest key."""

    likeliest: int
    in_turn: int
    new: int

    @classmethod
    def of(cls, rows_max: int, *, in_turn_max: int | None = None) -> PartBudget:
        """Divide `rows_max` rows; the likeliest get what is beyond `in_turn_max` rows in turn."""
        in_turn, likeliest = (int(share * rows_max) for share in (IN_TURN, LIKELIEST))
        taken = in_turn if in_turn_max is None else min(in_turn, in_turn_max)
        return cls(likeliest + in_turn - taken, taken, rows_max - in_turn - likeliest)


@dataclass(frozen=True, slots=True)
class CaughtChanges:
    """Rows of ours that are expected to have been updated or deleted, how many of them a part is
    expected to find, and the probability that it finds all."""

    changed: float
    found: float
    finds_all: float


def caught(histogram: Histogram, budget: PartBudget, p_delete: float) -> CaughtChanges:
    """Return which changes of published rows a part finds. Rows in turn are taken to be as likely
    to have changed as all that are not among the likeliest.

    Args:
        p_delete: P({−t}), of each row alike.
    """
    rows = int(histogram.counts.sum())
    chosen = most_likely(histogram, budget.likeliest)
    left = np.zeros(len(histogram.counts))  # shares of the classes that are not compared
    left[: chosen.least] = 1.0
    if chosen.least:
        left[chosen.least - 1] = 1.0 - chosen.share
    left *= 1.0 - min(budget.in_turn / max(float(histogram.counts @ left), 1.0), 1.0)
    missed = float(histogram.updates @ left + p_delete * (histogram.counts @ left))
    unchanged = np.exp(-exponents(histogram.means, p_delete) @ (histogram.counts * left))
    changed = float(histogram.updates.sum()) + p_delete * rows
    return CaughtChanges(changed, changed - missed, float(unchanged))


def unfit_key(name: str) -> ConfigurationError:
    """Return the error of a part of a fragment whose rows cannot be named."""
    return ConfigurationError(
        "Only a relation whose key is one integer, or has an order that both sides compute "
        "(integers, dates, UUIDs, text and bytes by their bytes), can be compared in part.",
        where=name,
        remedy='Remove `read_at_most` and `proof = "part"` from the fragment.',
    )


def refuse_too_many(name: str, keys: int) -> None:
    """Raise ConfigurationError if a fragment has more rows than one exchange of groups can name,
    and its key has no order by which they could be divided into shards."""
    if keys > GROUPED_KEYS_MAX:
        raise ConfigurationError(
            f"By groups at most {GROUPED_KEYS_MAX:,} rows are compared if the key has no order "
            f"that both sides compute, and these are {keys:,} rows.",
            where=name,
            remedy="Change `method` of the fragment: a sketch has no such limit.",
        )

"""Groups selected row by row: the repaired Algorithm 1, by which `plan_groups` is measured.

Lu, Liu and Hyland, section V, with the four repairs that `planning.group_selection` lists. It needs
every row at the driver and sorts them, so the product plans by classes of like rows instead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from driftline.arrays import Floats, Integers

from warehouse_agent.planning.group_selection import ByteSizes, expected_benefit, lambert_w

UNGROUPED: Final = -1


def is_full(n: float, big_a: float, sizes: ByteSizes) -> bool:
    """Return True once n like rows have passed their best benefit per row: d(EB/n)/dn ≤ 0."""
    return bool(n * big_a * np.exp(-big_a) >= sizes.phi_h / sizes.phi_t)


def select_groups(a: Floats, sizes: ByteSizes) -> Integers:
    """The repaired Algorithm 1: int64 [n], a group number for each row or UNGROUPED.

    For as many rows as fit into memory; `plan_groups` is for tables.

    Args:
        a: a_i of each row, float64 [n], finite, in any order.
    """
    order = np.argsort(a, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(a[order])])
    cuts = _cuts(a[order], sums, sizes)
    labels = np.full(len(a), UNGROUPED, np.int64)
    starts, stops = cuts[:-1], cuts[1:]
    worth = expected_benefit(stops - starts, sums[stops] - sums[starts], sizes) > 0
    for number, at in enumerate(np.flatnonzero(worth)):
        labels[order[starts[at] : stops[at]]] = number
    return labels


def _cuts(a: Floats, sums: Floats, sizes: ByteSizes) -> Integers:
    """Where groups of ascending rows begin, and the end."""
    cuts, n, big_a = [0], 0, 0.0
    for j, a_j in enumerate(a.tolist()):
        if n:
            without = float(expected_benefit(n, big_a, sizes))
            together = float(expected_benefit(n + 1, big_a + a_j, sizes))
            is_hot = together < without  # better outside; so are all after it
            overshoots = without * (n + 1) > together * n
            if is_hot or (overshoots and is_full(n + 1, big_a + a_j, sizes)):
                cuts.append(j)
                n, big_a = 0, 0.0
        n, big_a = n + 1, big_a + a_j
        if is_full(n, big_a, sizes):
            cuts.append(j + 1)
            n, big_a = 0, 0.0
    if n:
        cuts.append(len(a))
        _even_out(cuts, sums, sizes)
    return np.array(cuts, np.int64)


def _even_out(cuts: list[int], sums: Floats, sizes: ByteSizes) -> None:
    """Move the cut between the last two groups to where both together are worth most."""
    if len(cuts) < 3:
        return
    first, now, last = cuts[-3:]
    at = np.arange(first, last + 1)
    left = expected_benefit(at - first, sums[at] - sums[first], sizes)
    right = expected_benefit(last - at, sums[last] - sums[at], sizes)
    worth = np.maximum(left, 0) + np.maximum(right, 0)
    best = int(np.argmax(worth))
    if worth[best] > worth[now - first]:
        cuts[-2:-1] = [first + best] if 0 < best < last - first else []


def cost_bytes(labels: Integers, a: Floats, sizes: ByteSizes) -> float:
    """Expected bytes of a grouping: keys and hashes up, rows of differing groups and of none down.

    Args:
        labels: int64 [n], a number that the rows of a group share, or UNGROUPED.
        a: a_i of each row, float64 [n].
    """
    grouped = labels != UNGROUPED
    _, at, n = np.unique(labels[grouped], return_inverse=True, return_counts=True)
    benefit = expected_benefit(n, np.bincount(at, a[grouped], len(n)), sizes)
    return float(sizes.phi_t * len(labels) - benefit.sum())


def n_g(a: Floats, sizes: ByteSizes) -> Floats:
    """Rows where EB per *group* peaks, the paper's criterion: (1 − W(e·Φ_k/Φ_t))/a, float64 [n].

    From dEB/dn = 0. Such a group is identical with e^−(1 − W(e·Φ_k/Φ_t)), below one half whatever a
    is; it is here to be compared with.
    """
    with np.errstate(divide="ignore"):
        return (1 - lambert_w(np.asarray(np.e * sizes.phi_k / sizes.phi_t))) / a

"""The reference for group selection: Lu, Liu, Hyland, section V, and Algorithm 1 as printed.

Names are the paper's symbols: phi is a snapshot φ′, l its sorted list ℓ, eta a group η, big_lambda
the plan Λ, Φ_t, Φ_k, Φ_h are PHI's t, k, h in bytes. `group_selection` keeps every flaw of the
printed lines; `greedy` is the same choice without its exits, in whatever order it is given rows.
`optimum` is what any selection can be measured against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np


class Phi(NamedTuple):
    t: float
    k: float
    h: float


class Entry(NamedTuple):
    """A row of ω±: how often the view was maintained with this tuple, and the tuple updated."""

    tid: int
    tno: int
    uno: int


class Synchronization(NamedTuple):
    """A row of ω−: tuples before, and how many of them were deleted."""

    tno: int
    dno: int


def included(tid: int) -> Entry:
    """The entry of a tuple that is first included into the view (section V.B)."""
    return Entry(tid, tno=1, uno=1)


def maintained(entry: Entry, *, updated: bool) -> Entry:
    return Entry(entry.tid, entry.tno + 1, entry.uno + updated)


def p_update(entry: Entry) -> float:
    """P({±t_i})"""
    return entry.uno / entry.tno


def p_delete(omega_minus: Sequence[Synchronization]) -> float:
    """P({−t_j}): the mean of a_j = dno_j/tno_j."""
    a = [Fraction(s.dno, s.tno) for s in omega_minus]
    return float(sum(a, Fraction(0)) / len(a))


class Eta(NamedTuple):
    """A group: `size` rows of ℓ from number `first`, unchanged with P({η : *η′}) = p."""

    first: int
    size: int
    p: float


def sz(eta: Eta, phi: Phi) -> float:
    return phi.t * eta.size


def hz(eta: Eta, phi: Phi) -> float:
    return phi.k * eta.size + phi.h


def mu(eta: Eta, phi: Phi) -> float:
    return sz(eta, phi) - hz(eta, phi)


def es(eta: Eta, phi: Phi) -> float:
    return mu(eta, phi) * eta.p


def eb(eta: Eta, phi: Phi) -> float:
    """Expected benefit in bytes (section V.D)."""
    return es(eta, phi) - hz(eta, phi) * (1 - eta.p)


def include(eta: Eta | None, j: int, p: float) -> Eta:
    """f_⊔: the group with t_j as well, whose probability of staying unchanged is p."""
    return Eta(j, 1, p) if eta is None else Eta(eta.first, eta.size + 1, eta.p * p)


def group_selection(
    omega_update: Sequence[Entry], omega_minus: Sequence[Synchronization], phi: Phi
) -> list[list[Entry]]:
    """Algorithm 1, line by line."""
    big_lambda: list[list[Entry]] = []
    stays = 1 - p_delete(omega_minus)
    j = 1  # 2
    tmp1: Eta | None = None  # 4; i of line 3 is len(big_lambda) + 1
    tmp2: Eta | None = None  # 5
    l = sorted(omega_update, key=p_update, reverse=True)  # 6  # noqa: E741
    p = [math.nan] + [(1 - p_update(t)) * stays for t in l]  # t_1 is the first
    while j < len(l):  # 7
        tmp1 = include(tmp1, j, p[j])  # 8
        if eb(tmp1, phi) <= 0:  # 9
            return big_lambda  # 10
        tmp2 = include(tmp1, j + 1, p[j + 1])  # 12
        if eb(tmp1, phi) > eb(tmp2, phi):  # 13
            big_lambda.append(l[tmp1.first - 1 : tmp1.first - 1 + tmp1.size])  # 14, 15
            tmp1 = None  # 16
        else:
            tmp2 = None  # 18
        j += 1  # 20
    return big_lambda


def greedy(p: Sequence[float], phi: Phi) -> list[Eta]:
    """Lines 8 and 12 to 20 for every row in the order given; the open group is put out as well.

    p: the probability of each that it stays unchanged.
    """
    found: list[Eta] = []
    tmp1: Eta | None = None
    for j in range(len(p)):
        tmp1 = include(tmp1, j, p[j])
        if j + 1 == len(p) or eb(tmp1, phi) > eb(include(tmp1, j + 1, p[j + 1]), phi):
            found.append(tmp1)
            tmp1 = None
    return found


def cost(rows: int, groups: Sequence[Eta], phi: Phi) -> float:
    """Bytes to transfer: everything, less EB(φ) (section V.D)."""
    return phi.t * rows - sum(eb(eta, phi) for eta in groups)


def optimum(a: Sequence[float], phi: Phi) -> float:
    """The least cost of any cut of these rows, in this order, into groups and rows left out; O(n²).

    a: −ln of the probability of each that it stays unchanged. Sorted, the least cost of any
    grouping whatever: for given sizes the cost is a sum of concave functions of the groups' sums.
    """
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(a, float))])
    best = np.zeros(len(a) + 1)
    for j in range(1, len(a) + 1):
        size = np.arange(j, 0, -1)
        whole = best[:j] + phi.k * size + phi.h
        changed = phi.t * size * -np.expm1(sums[:j] - sums[j])
        best[j] = min(best[j - 1] + phi.t, (whole + changed).min())
    return float(best[-1])


def groupings(rows: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide the rows into groups."""
    if not rows:
        yield []
        return
    first, *others = rows
    for rest in groupings(others):
        yield [[first], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [first, *rest[i]], *rest[i + 1 :]]


def least_of_all_groupings(a: Sequence[float], phi: Phi) -> float:
    """`optimum` without its insight; a group without expected benefit is left out."""
    p = [math.exp(-x) for x in a]
    found = []
    for groups in groupings(list(range(len(a)))):
        etas = [Eta(0, len(g), math.prod(p[i] for i in g)) for g in groups]
        found.append(cost(len(a), [e for e in etas if eb(e, phi) > 0], phi))
    return min(found)

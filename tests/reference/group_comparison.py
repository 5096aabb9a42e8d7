"""The reference for delta extraction: Lu, Liu, Hyland, section VI, with Algorithm 2 as printed.

Names are the paper's symbols: phi is the decomposed query φ at the remote site, phi_past the
snapshot φ′, u the data units ⟨uid, η.k, h(η)⟩. A relation is a dictionary of rows by key.
`identify_update` keeps the flaw of the printed lines: i runs from 1 while i < |u|, so the last unit
is never compared. `identify_update_of_all` has the bound i ≤ |u|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

Relation = Mapping[int, tuple[object, ...]]


class Unit(NamedTuple):
    uid: int
    k: frozenset[int]
    h: bytes


class Delta(NamedTuple):
    """t⁺ and t± as rows of φ by key, and t⁻ as keys."""

    inserted: Relation
    deleted: frozenset[int]
    updated: Relation


Identify = Callable[[Relation, Sequence[Unit]], Relation]


def h(eta: Relation) -> bytes:
    """The group hash h(η) of rows, whatever their order."""
    return blake2b(repr(sorted(eta.items())).encode()).digest()


def select(phi: Relation, keys: frozenset[int]) -> Relation:
    """σ_{φ.k ∈ keys}(φ)."""
    return {k: row for k, row in phi.items() if k in keys}


def data_units(plan: Sequence[Sequence[int]], phi_past: Relation) -> list[Unit]:
    """Step 1, f_τ: a data unit of each group of the plan Λ, in its order."""
    return [
        Unit(uid, frozenset(keys), h(select(phi_past, frozenset(keys))))
        for uid, keys in enumerate(plan, start=1)
    ]


def regroup(u: Sequence[Unit], deleted: frozenset[int], phi_past: Relation) -> list[Unit]:
    """The units without their deleted keys, hashed again at the warehouse."""
    return [
        Unit(unit.uid, unit.k - deleted, h(select(phi_past, unit.k - deleted)))
        if unit.k & deleted
        else unit
        for unit in u
    ]


def identify_update(phi: Relation, u: Sequence[Unit]) -> Relation:
    """Algorithm 2, line by line; u_1 is the first unit."""
    i = 1  # 2
    updated: dict[int, tuple[object, ...]] = {}  # 4
    while i < len(u):  # 5
        eta_tmp = select(phi, u[i - 1].k)  # 6
        if h(eta_tmp) != u[i - 1].h:  # 7
            updated |= eta_tmp  # 8
        i += 1  # 10
    return updated


def identify_update_of_all(phi: Relation, u: Sequence[Unit]) -> Relation:
    """Algorithm 2 with i ≤ |u| in line 5."""
    return {k: r for unit in u if h(own := select(phi, unit.k)) != unit.h for k, r in own.items()}


def extract(
    phi: Relation, phi_past: Relation, plan: Sequence[Sequence[int]], identify: Identify
) -> Delta:
    """Steps 1 to 3 for a plan that has every key of the snapshot in one group."""
    u = data_units(plan, phi_past)
    inserted = select(phi, frozenset(phi) - frozenset(phi_past))
    deleted = frozenset(phi_past) - frozenset(phi)
    return Delta(inserted, deleted, identify(phi, regroup(u, deleted, phi_past)))


def apply(delta: Delta, phi_past: Relation) -> Relation:
    """The snapshot after synchronization: φ′ − Δ⁻ ∪ Δ⁺."""
    kept = {k: row for k, row in phi_past.items() if k not in delta.deleted}
    return {**kept, **delta.inserted, **delta.updated}

"""The dependency graph of relations, and the deletions that spread along it.

(A. Gal, J. Eckstein, J. ACM 48(6), 2001, sections 2.2 and 2.2.1.) An edge leads from a relation to
one that it references with ON DELETE CASCADE: only such a foreign key deletes a row because another
one was deleted. A tuple r dies with any of the w_S(r) tuples of relation S that it depends on, so
it survives (s, f] with probability exp(−Σ_S w_S(r) M_S(s, f)), where M_S integrates the *own*
deletions of S, those that no parent of S causes (Lemma 3). Where w_S(r) is the same for all tuples
the multiplicity is fixed (Definition 2, Lemma 4).

The catalogue bounds w_S without a look at the rows: each path from R to S leads to one tuple at
most, and a path without columns that may be NULL to one at least. Two paths may lead to the same
tuple. Where the bounds differ, the survival by Lemma 3 lies between those by Lemma 4 with either.

Foreign keys that close a cycle are left out, as in the paper, and told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RELATIONS_MAX = 64  # of a graph: more are not followed


@dataclass(frozen=True, slots=True)
class CascadingKey:
    """A foreign key to `parent` that deletes with it; `is_nullable`: one of its columns may be
    NULL, so that a tuple may depend on no tuple of the parent."""

    parent: str
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class Multiplicity:
    """Bounds of w_S(r), the number of tuples of S that a tuple depends on."""

    least: int
    most: int

    @property
    def is_fixed(self) -> bool:
        """Return True if it is the same for all tuples (Definition 2)."""
        return self.least == self.most

    @property
    def middle(self) -> float:
        """Return the number to be taken where one is needed."""
        return (self.least + self.most) / 2


Graph = Mapping[str, Sequence[CascadingKey]]  # the edges of each relation


def multiplicities(graph: Graph, name: str) -> dict[str, Multiplicity]:
    """Return the multiplicity of every relation on which the tuples of one depend, without itself.

    A cycle is cut where a walk from `name` returns to a relation that it has not left yet.
    """
    order, kept = _walk(graph, name)
    by_relation = dict.fromkeys(order, Multiplicity(0, 0)) | {name: Multiplicity(1, 1)}
    for relation in order:
        of = by_relation[relation]
        for edge in kept[relation]:
            known, certain = by_relation[edge.parent], 0 if edge.is_nullable else of.least
            by_relation[edge.parent] = Multiplicity(max(known.least, certain), known.most + of.most)
    del by_relation[name]
    return by_relation


def _walk(graph: Graph, name: str) -> tuple[list[str], dict[str, list[CascadingKey]]]:
    """Return the relations on which one depends, itself first and each before its parents, and
    their foreign keys without those that close a cycle."""
    left: list[str] = []  # in the order in which all of their parents had been visited
    kept: dict[str, list[CascadingKey]] = {}

    def visit(relation: str, path: frozenset[str]) -> None:
        kept[relation] = [one for one in graph.get(relation, ()) if one.parent not in path]
        for edge in kept[relation]:
            if edge.parent not in kept:
                visit(edge.parent, path | {edge.parent})
        left.append(relation)

    visit(name, frozenset({name}))
    return left[::-1], kept


def cycles(graph: Graph) -> tuple[str, ...]:
    """Return the relations that depend on themselves, by name."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            for edge in graph.get(waiting.pop(), ()):
                if edge.parent not in seen:
                    seen.add(edge.parent)
                    waiting.append(edge.parent)
        return seen

    return tuple(sorted(name for name in graph if name in reached(name)))


def own_deaths(graph: Graph, observed: Mapping[str, float]) -> dict[str, float]:
    """Return μ_S, the deletions per tuple and hour that no parent causes, of each relation.

    Args:
        observed: deletions per tuple and hour as refreshes found them, of any cause. A relation
            that is not in it is taken to lose no tuples of its own.
    """
    deaths: dict[str, float] = {}

    def own(name: str, path: frozenset[str]) -> float:
        if name not in deaths:
            above = multiplicities(graph, name)
            caused = sum(
                above[parent].middle * own(parent, path | {parent})
                for parent in above
                if parent not in path
            )
            deaths[name] = max(observed.get(name, 0.0) - caused, 0.0)
        return deaths[name]

    for name in sorted({*graph, *observed}):
        own(name, frozenset({name}))
    return deaths


def with_parents(graph: Graph, name: str, own: Mapping[str, float]) -> tuple[float, float]:
    """Return bounds of Σ_S w_S μ_S over the parents of a relation: deletions per tuple and hour
    that they cause.

    Args:
        own: μ_S of each relation, as `own_deaths` returns it.
    """
    above = multiplicities(graph, name)
    rates = [(one, own.get(parent, 0.0)) for parent, one in above.items()]
    return sum(w.least * rate for w, rate in rates), sum(w.most * rate for w, rate in rates)

"""Components of a warehouse: fragments joined by views, and these views; without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Component:
    """Fragments that move with views over them.

    `views` are in an order in which each follows the views that it reads.
    """

    fragments: tuple[str, ...]
    views: tuple[str, ...]


def in_order(inputs: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return views so that each follows the views that it reads.

    Args:
        inputs: of each view, the names of fragments and views.

    Raises:
        ConfigurationError: views depend on each other in a circle; it is named.
    """
    done: dict[str, None] = {}

    def visit(view: str, path: tuple[str, ...]) -> None:
        if view in path:
            circle = (*path[path.index(view) :], view)
            raise ConfigurationError(
                f"Views depend on each other in a circle: {' reads '.join(circle)}.",
                where=f"views.{view}.query",
                remedy="Let one of them read the fragments themselves.",
            )
        for name in inputs[view]:
            if name in inputs and name not in done:
                visit(name, (*path, view))
        done[view] = None

    for view in inputs:
        if view not in done:
            visit(view, ())
    return tuple(done)


def components(inputs: Mapping[str, Sequence[str]]) -> tuple[Component, ...]:
    """Return the components that views make. A fragment without views is in none.

    Raises:
        ConfigurationError: as `in_order`.
    """
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for view, names in inputs.items():
        for name in names:
            leader[find(name)] = find(view)
    by_leader: dict[str, tuple[list[str], list[str]]] = {}
    for view in in_order(inputs):
        by_leader.setdefault(find(view), ([], []))[1].append(view)
    for name in leader:
        if name not in inputs:
            by_leader[find(name)][0].append(name)
    return tuple(Component(tuple(sorted(f)), tuple(v)) for f, v in by_leader.values())


def above(names: Iterable[str], inputs: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the views over these fragments and views, directly or over other views."""
    reached: set[str] = set()
    left = set(names)
    while left:
        left = {v for v, reads in inputs.items() if left & set(reads)} - reached
        reached |= left
    return frozenset(reached)


def below(views: Iterable[str], inputs: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the fragments that these views read, directly or over other views."""
    reached: set[str] = set()
    left = list(views)
    while left:
        for name in inputs[left.pop()]:
            if name not in reached:
                reached.add(name)
                left += [name] if name in inputs else []
    return frozenset(reached - inputs.keys())

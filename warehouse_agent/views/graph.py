"""Components of a warehouse: fragments joined by views, and these views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


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
    raise NotImplementedError


def components(inputs: Mapping[str, Sequence[str]]) -> tuple[Component, ...]:
    """Return the components that views make. A fragment without views is in none."""
    raise NotImplementedError


def above(names: Iterable[str], inputs: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the views over these fragments and views, directly or over other views."""
    raise NotImplementedError

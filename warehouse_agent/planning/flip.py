"""Decide the members of the next warehouse version, without I/O.

A warehouse version says which versions of fragments and views belong together. What moves of a
component moves in one flip, its views always: a view that could not follow is marked as stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """Kinds of members: a configured fragment, a relation kept for views, a view."""

    FRAGMENT = "fragment"
    KEPT = "kept"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class Member:
    """A published table in a warehouse version.

    Attributes:
        name: of the fragment or the view; `source.relation` of a kept relation.
        folder: of its table, relative to the warehouse, with `/`.
        version: of the table.
        as_of: the source's time of its rows, ISO 8601 in UTC; of a view the least of its inputs.
        consistency, proof: of the fragment; of a view the weakest among its inputs.
        checked: how a view was checked: "total"; None of a fragment.
        inputs: of a view, the versions that it was made of, by name.
        stale: why the view stayed behind its inputs; None: it is made of the versions beside it.
        stale_since, moved_at: ISO 8601 in UTC.
    """

    name: str
    kind: Kind
    folder: str
    version: int
    as_of: str
    consistency: str
    proof: str
    moved_at: str
    checked: str | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    stale: str | None = None
    stale_since: str | None = None


def moved(before: Mapping[str, Member], changed: Iterable[Member]) -> dict[str, Member] | None:
    """Return the members of the next warehouse version by name; None if nothing moved.

    Raises:
        AssertionError: a view that is not stale is not made of the versions beside it.
    """
    raise NotImplementedError

"""Decide the members of the next warehouse version, without I/O.

A warehouse version says which versions of fragments and views belong together. What moves of a
component moves in one flip, its views always: a view that could not follow is marked as stale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
        checked: how a view was checked: "total" or "slice"; None of a fragment.
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

    def marked(self, why: str, now: str) -> Member:
        """Return the member as a view that stays behind since `now`, or since it first did."""
        return replace(self, stale=why, stale_since=self.stale_since or now)


def moved(
    before: Mapping[str, Member], changed: Iterable[Member], views: Collection[str] | None = None
) -> dict[str, Member] | None:
    """Return the members of the next warehouse version by name; None if nothing moved.

    A member that is as before, apart from its times, stays as it was.

    Args:
        views: the views that are configured; None: all of `before`. Another one is left out when
            its inputs move, because nobody computes it any more.

    Raises:
        AssertionError: a view that is not stale is not made of the versions beside it.
    """
    after = dict(before)
    for member in changed:
        known = before.get(member.name)
        if known is None or replace(member, moved_at=known.moved_at) != known:
            after[member.name] = member
    if after == dict(before):
        return None
    while views is not None and (gone := _removed(after, views)):
        for name in gone:
            del after[name]
    for member in after.values():
        if member.kind is Kind.VIEW and member.stale is None:
            beside = _beside(member, after)
            assert beside == dict(member.inputs), f"{member.name}: {member.inputs}, not {beside}"
    return after


def _removed(members: Mapping[str, Member], views: Collection[str]) -> list[str]:
    """Return views that nobody configures and that are not made of the versions beside them."""
    return [
        m.name
        for m in members.values()
        if m.kind is Kind.VIEW and m.name not in views and _beside(m, members) != dict(m.inputs)
    ]


def _beside(view: Member, members: Mapping[str, Member]) -> dict[str, int]:
    """Return the versions of a view's inputs among these members."""
    return {name: members[name].version for name in view.inputs if name in members}

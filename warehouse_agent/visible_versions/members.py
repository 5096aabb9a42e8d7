"""Decide the members of the next warehouse version, without I/O.

A warehouse version says which versions of fragments and views belong together. What moves of a
component moves in one flip, its views always: a view that could not follow is marked as stale. So
is a view whose query was changed and that was made of a table that moves without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class MemberKind(Enum):
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
    kind: MemberKind
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

    A member that is as before, apart from its times, stays as it was. A view that is not in
    `changed` is marked as stale if what it was made of moves without it: its query reads other
    tables now.

    Args:
        views: the views that are configured; None: all of `before`. Another one is left out when
            its inputs move, because nobody computes it any more.

    Raises:
        AssertionError: a view in `changed` is neither stale nor made of the versions beside it.
    """
    after, decided = dict(before), set[str]()
    for member in changed:
        decided.add(member.name)
        known = before.get(member.name)
        if known is None or replace(member, moved_at=known.moved_at) != known:
            after[member.name] = member
    if after == dict(before):
        return None
    now = max(member.moved_at for name, member in after.items() if member != before.get(name))
    while views is not None and (gone := _removed(after, views)):
        for name in gone:
            del after[name]
    while late := {n: why for n in after.keys() - decided if (why := _late(after[n], after))}:
        for name, why in late.items():
            after[name] = after[name].marked(why, now)
    for name in decided & after.keys():
        view = after[name]
        if view.kind is MemberKind.VIEW and view.stale is None:
            beside = _beside(view, after)
            assert beside == dict(view.inputs), f"{name}: {view.inputs}, not {beside}"
    return after


def overtaken(
    read: Mapping[str, Member],
    newest: Mapping[str, Member],
    changed: Iterable[Member],
    names: Iterable[str],
) -> str | None:
    """Return one of `names` that another command moved since `read` was read; None if none was.

    What was decided on `read` must not be flipped then. The first warehouse version of another
    component may name our fragments, as of versions that are not newer: that is no move.

    Args:
        read: the members that the decision was made on; empty: there was no table.
        newest: the members now.
        changed: what is to be flipped.
        names: of the component's fragments and views.
    """
    ours = {member.name: member.version for member in changed}
    for name in names:
        known = newest.get(name)
        is_begun = not read and (
            known is None
            or (known.kind is not MemberKind.VIEW and known.version <= ours.get(name, -1))
        )
        if not is_begun and known != read.get(name):
            return name
    return None


def _removed(members: Mapping[str, Member], views: Collection[str]) -> list[str]:
    """Return views that nobody configures and that are not made of the versions beside them."""
    return [
        m.name
        for m in members.values()
        if m.kind is MemberKind.VIEW
        and m.name not in views
        and _beside(m, members) != dict(m.inputs)
    ]


def _late(member: Member, members: Mapping[str, Member]) -> str | None:
    """Return why a view that nobody computed is to be marked; None: it is not to be."""
    if member.kind is not MemberKind.VIEW or member.stale is not None:
        return None
    beside = _beside(member, members)
    for name, version in member.inputs.items():
        if beside.get(name) != version:
            return f"{name} moved, which its query does not read any more"
        if members[name].stale is not None:
            return f"its input {name} is stale"
    return None


def _beside(view: Member, members: Mapping[str, Member]) -> dict[str, int]:
    """Return the versions of a view's inputs among these members."""
    return {name: members[name].version for name in view.inputs if name in members}

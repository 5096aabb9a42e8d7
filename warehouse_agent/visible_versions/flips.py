"""Move fragments and views in the table of versions, once a warehouse has one.

A fragment without views is flipped directly after its own commit. The table begins with the first
view; its first version names the newest version of every configured table.

Locks may not exclude others (object stores have none), so no flip is written blindly: what moves is
read, or compared with what it was decided on, on the members that the flip replaces. Where they do
exclude others, the notes of a fragment whose lock is held are passed on, not read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from driftline.errors import Locked

from warehouse_agent.config import Fragment, Proof, WarehouseConfig
from warehouse_agent.history.notes import Notes
from warehouse_agent.report import utc_now
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.visible_versions import warehouse_versions
from warehouse_agent.visible_versions.members import Member, MemberKind, moved, overtaken
from warehouse_agent.visible_versions.warehouse_versions import WarehouseVersion


@dataclass
class Flips:
    """The flips of one command; safe for threads."""

    store: Store
    config: WarehouseConfig
    _known: WarehouseVersion | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def newest(self) -> WarehouseVersion | None:
        """Return the newest warehouse version, read now; None without a table.

        Raises:
            WarehouseUnavailable: it cannot be read.
        """
        version = None
        if warehouse_versions.exists(self.store):
            version = warehouse_versions.newest(self.store)
        with self._lock:
            self._known = version
        return version

    def committed(
        self, fragment: Fragment, version: int | None, notes: Notes | None = None
    ) -> int | None:
        """Commit the flip of a fragment that was committed, or found equal while its head is ahead.

        Args:
            version: of its table now; None: nothing is published.
            notes: as they are after it, while its lock is held; None: they are read.

        Returns:
            The number of the newest warehouse version that is known; None without a table.

        Raises:
            Locked, WarehouseUnavailable: the table of versions cannot be read or written.
        """
        with self._lock:
            known = self._known
        if known is None:
            if not warehouse_versions.exists(self.store):
                return None
            known = self.newest()
        member = known.members.get(fragment.name) if known else None
        if known is None or version is None or (member and member.version == version):
            return known.number if known else None
        return self._flip(lambda _: self._heads([fragment], notes))

    def move(
        self, changed: Sequence[Member], read: Mapping[str, Member], names: Iterable[str]
    ) -> int | None:
        """Commit what moves of a component; return the number of the newest warehouse version.

        The table begins with the first view. Its first version names the newest version of every
        fragment that is published. A command that committed a fragment before it could see the
        table is seen when all are read once more.

        Args:
            changed: the members that move, decided on `read`.
            read: the members of the newest version when it was decided; empty: there was no table.
            names: of the component's fragments and views.

        Returns:
            The number; None without a table: a flip of fragments alone makes none.

        Raises:
            Locked: another command moved some of the component since `read`, or others flipped
                again and again meanwhile.
            WarehouseUnavailable: the table of versions cannot be read or written.
        """
        component = tuple(names)

        def change(members: Mapping[str, Member]) -> Sequence[Member]:
            if (name := overtaken(read, members, changed, component)) is not None:
                raise _overtaken(name)
            return changed if members else [*self._heads(others), *changed]

        if read:
            return self._flip(change)
        if not any(m.kind is MemberKind.VIEW for m in changed):
            return None
        ours = {member.name for member in changed}
        others = [f for f in self.config.fragments.values() if f.name not in ours]
        self._flip(change, begin=True)
        alone = [f for f in others if not self._has_views(f.name)]
        return self._flip(lambda _: self._heads(alone))

    def _flip(
        self, change: Callable[[Mapping[str, Member]], Sequence[Member]], *, begin: bool = False
    ) -> int | None:
        """Commit the next warehouse version; return the number of the newest, None without table.

        Args:
            change: returns what moves, from the members that are replaced.
            begin: make the table if there is none.
        """

        def after(members: Mapping[str, Member]) -> dict[str, Member] | None:
            if not members and not begin:
                return None
            return moved(members, change(members), self.config.views)

        version = warehouse_versions.flip(self.store, after)
        with self._lock:
            self._known = version
        return version.number if version else None

    def _heads(self, fragments: Iterable[Fragment], notes: Notes | None = None) -> list[Member]:
        """Return members of the newest versions of those fragments that are published.

        notes: of the only one, as in `committed`.
        """
        return [
            fragment_member(self.store, fragment, snapshot, notes)
            for fragment in fragments
            if (snapshot := formats.head(self.store, fragment.name)) is not None
        ]

    def _has_views(self, name: str) -> bool:
        return any(name in view.inputs for view in self.config.views.values())


def fragment_member(
    store: Store, fragment: Fragment, snapshot: Snapshot, notes: Notes | None = None
) -> Member:
    """Return the member of a fragment whose version `snapshot` is.

    notes: of the fragment, as they are now if its lock excludes others; None: they are read.
    """
    if notes is None or not store.has_locks:
        notes = Notes.read(store, fragment.name)
    comparison = notes.comparison(snapshot)
    return Member(
        name=fragment.name,
        kind=MemberKind.KEPT if fragment.is_kept else MemberKind.FRAGMENT,
        folder=store.folder(fragment.name),
        version=snapshot.version,
        as_of=comparison.as_of,
        consistency=comparison.consistency,
        proof=comparison.proof,
        moved_at=utc_now(),
    )


def _overtaken(name: str) -> Locked:
    return Locked(
        "Another command showed another version meanwhile; what was decided before is not shown.",
        where=name,
        remedy="Run the command again: it goes on from what was committed.",
    )


# Consistencies, then proofs.
_WEAKEST_FIRST = ("fuzzy", "exact", *(proof.value for proof in Proof))


def weakest(what: str, inputs: Iterable[Member]) -> str:
    """Return the weakest `consistency` or `proof` among inputs."""
    words = {getattr(member, what) for member in inputs}
    return next(word for word in _WEAKEST_FIRST if word in words)


def view_member(
    store: Store, name: str, snapshot: ViewSnapshot, inputs: Sequence[Member]
) -> Member:
    """Return the member of a view whose version `snapshot` is made of these members."""
    return Member(
        name=name,
        kind=MemberKind.VIEW,
        folder=store.folder(name),
        version=snapshot.version,
        as_of=min(m.as_of for m in inputs),
        consistency=weakest("consistency", inputs),
        proof=weakest("proof", inputs),
        moved_at=utc_now(),
        checked=snapshot.record.checked,
        inputs={m.name: m.version for m in inputs},
    )

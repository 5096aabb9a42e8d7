"""Move fragments and views in the table of versions, once a warehouse has one.

A fragment without views is flipped directly after its own commit. The table begins with the first
view; its first version names the newest version of every configured table.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history.record import checked
from warehouse_agent.planning.flip import Kind, Member, moved
from warehouse_agent.report import utc_now
from warehouse_agent.storage import formats, warehouse_versions
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot, ViewSnapshot
from warehouse_agent.storage.warehouse_versions import WarehouseVersion


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
        found = None
        if warehouse_versions.exists(self.store):
            found = warehouse_versions.newest(self.store)
        with self._lock:
            self._known = found
        return found

    def committed(self, fragment: Fragment, version: int | None) -> int | None:
        """Commit the flip of a fragment that was committed, or found equal while its head is ahead.

        Args:
            version: of its table now; None: nothing is published.

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
        snapshot = formats.head(self.store, fragment.name)
        if snapshot is None:
            return known.number
        return self.flip([fragment_member(self.store, fragment, snapshot)])

    def flip(self, changed: Iterable[Member]) -> int | None:
        """Commit the next warehouse version; return the number of the newest, None without table.

        Raises:
            Locked, WarehouseUnavailable: as of `warehouse_versions.flip`.
        """
        found = warehouse_versions.flip(self.store, partial(self._after, list(changed)))
        with self._lock:
            self._known = found
        return found.number if found else None

    def begin(self, changed: Iterable[Member]) -> int | None:
        """Commit the first warehouse version, or the next one if somebody else was faster.

        The first names the newest version of every fragment that is published. A command that
        committed a fragment before it could see the table is seen when all are read once more.
        """
        news, ours = list(changed), {m.name for m in changed}

        def change(members: Mapping[str, Member]) -> dict[str, Member] | None:
            return moved(
                members, news if members else [*self._heads(ours), *news], self.config.views
            )

        warehouse_versions.flip(self.store, change)
        return self.flip(m for m in self._heads(ours) if not self._has_views(m.name))

    def _heads(self, but: set[str]) -> list[Member]:
        """Return members of the newest versions of all fragments that are not in `but`."""
        found = []
        for fragment in self.config.fragments.values():
            if fragment.name not in but:
                snapshot = formats.head(self.store, fragment.name)
                if snapshot is not None:
                    found.append(fragment_member(self.store, fragment, snapshot))
        return found

    def _after(
        self, changed: Sequence[Member], members: Mapping[str, Member]
    ) -> dict[str, Member] | None:
        """Return the members after a flip; None without a table: a flip of fragments makes none."""
        return moved(members, changed, self.config.views) if members else None

    def _has_views(self, name: str) -> bool:
        return any(name in view.inputs for view in self.config.views.values())


def fragment_member(store: Store, fragment: Fragment, snapshot: Snapshot) -> Member:
    """Return the member of a fragment whose version `snapshot` is."""
    notes = store.read_json(PRIVATE, "fragments", f"{fragment.name}.json")
    found = checked(notes, snapshot)
    return Member(
        name=fragment.name,
        kind=Kind.KEPT if fragment.is_kept else Kind.FRAGMENT,
        folder=store.folder(fragment.name),
        version=snapshot.version,
        as_of=found.as_of,
        consistency=found.consistency,
        proof=snapshot.record.proof,
        moved_at=utc_now(),
    )


def weakest(what: str, inputs: Iterable[Member]) -> str:
    """Return the weakest `consistency` or `proof` among inputs."""
    found = {getattr(member, what) for member in inputs}
    return next(word for word in ("fuzzy", "part", "exact", "total") if word in found)


def view_member(
    store: Store, name: str, snapshot: ViewSnapshot, inputs: Sequence[Member]
) -> Member:
    """Return the member of a view whose version `snapshot` is made of these members."""
    return Member(
        name=name,
        kind=Kind.VIEW,
        folder=store.folder(name),
        version=snapshot.version,
        as_of=min(m.as_of for m in inputs),
        consistency=weakest("consistency", inputs),
        proof=weakest("proof", inputs),
        moved_at=utc_now(),
        checked=snapshot.record.checked,
        inputs={m.name: m.version for m in inputs},
    )

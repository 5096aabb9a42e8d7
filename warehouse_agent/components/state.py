"""The versions of a component's fragments: flipped, committed, and held by this command.

A fragment is ahead if a newer version of it is committed or held than the one that readers are
given. That is so for a moment in each refresh, for longer as `max_lag` of its views allows or while
a view holds it, and after a crash. A phase takes all that is ahead along, whichever fragments the
command names. What was committed beside it from the same snapshot must be there, too: if a command
was killed between these commits, a version waits until its other half was refreshed, so that no
reader is shown half a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from driftline.errors import NotFound, WarehouseUnavailable

from warehouse_agent.components.held_fragments import HeldFragment
from warehouse_agent.components.phase_schedule import HeldChanges
from warehouse_agent.components.staleness import ProvenBatch
from warehouse_agent.history.history_lines import moved_views
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.refresh.schema_change import differs
from warehouse_agent.report import MovedViews
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import LogEntry, Snapshot
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.visible_versions.members import Member, MemberKind


@dataclass(frozen=True, slots=True)
class FragmentState:
    """A fragment of a component.

    Attributes:
        flipped: its version in the newest warehouse version; None: in none.
        given: that version as an input of views.
        target: the version that it has after this command; None: never published.
        head: the newest version that is committed, pinned; None: never published.
        batches: changes by the version that brought them, the target's included.
        is_urgent: readers are not to wait for the target.
        read_at: the source's time of the target's rows; None: this command did not compare them.
    """

    flipped: int | None
    given: PinnedInput | None
    target: PinnedInput | None
    head: Snapshot | None
    batches: Mapping[int, ProvenBatch]
    is_urgent: bool = False
    read_at: str | None = None

    @property
    def is_ahead(self) -> bool:
        """Return True if readers are given another version than the target."""
        return self.target is not None and self.target.version != self.flipped

    def since(self, version: int | None) -> list[ProvenBatch]:
        """Return the changes after a version, up to the target."""
        return [b for v, b in self.batches.items() if version is not None and v > version]


@dataclass(frozen=True, slots=True)
class ComponentState:
    """The fragments of a component by name, and the members of the newest warehouse version."""

    fragments: Mapping[str, FragmentState]
    members: Mapping[str, Member]
    number: int | None

    @property
    def targets(self) -> dict[str, PinnedInput | None]:
        """Return the inputs of views after this command."""
        return {name: one.target for name, one in self.fragments.items()}

    @property
    def visible(self) -> dict[str, PinnedInput | None]:
        """Return the inputs of views as readers are given them."""
        return {name: one.given for name, one in self.fragments.items()}

    @property
    def names_ahead(self) -> set[str]:
        """Return the fragments that are ahead."""
        return {name for name, one in self.fragments.items() if one.is_ahead}

    @property
    def is_urgent(self) -> bool:
        """Return True if something that is ahead is not to wait."""
        return any(one.is_urgent for one in self.fragments.values() if one.is_ahead)

    @property
    def ahead(self) -> HeldChanges | None:
        """Return the changes that readers are not given yet; None if there are none."""
        batches = [b for one in self.fragments.values() for b in one.since(one.flipped)]
        if not self.names_ahead:
            return None
        since = min((b.proven_at for b in batches), default=0.0)
        return HeldChanges(sum(b.rows for b in batches), since)


def state_of(
    store: Store,
    names: tuple[str, ...],
    held: Mapping[str, HeldFragment],
    members: Mapping[str, Member],
    number: int | None,
) -> ComponentState:
    """Read the state of the fragments `names`, of which `held` has those that are proven.

    Raises:
        NotFound, WarehouseUnavailable: the version that readers are given cannot be opened.
    """
    lowest = {n: m.version for n, m in members.items()}
    for member in members.values():
        if member.kind is MemberKind.VIEW:
            for name, version in member.inputs.items():
                lowest[name] = min(lowest.get(name, version), version)
    flipped = {name: members[name].version if name in members else None for name in names}
    heads = {name: _head(store, name, flipped[name], is_held=name in held) for name in names}
    left = {name for name in names if name not in held}
    while parts := {name for name in left if not _is_whole(heads[name], heads, held)}:
        left -= parts
        for name in parts:
            heads[name] = _flipped_head(store, name, heads[name], flipped[name])
    fragments = {
        name: _fragment(store, name, held.get(name), heads[name], flipped[name], lowest.get(name))
        for name in names
    }
    for name, one in held.items():
        fragments[name] = replace(fragments[name], read_at=one.read_at)
    return ComponentState(fragments, members, number)


def _is_whole(
    head: Snapshot | None, heads: Mapping[str, Snapshot | None], held: Mapping[str, HeldFragment]
) -> bool:
    """Return True if all versions are there that belong to the same snapshot as a head.

    A fragment that left the component does not count, and one that is held has a later snapshot.
    Without locks, the version that was to be committed beside it may be another command's.
    """
    if head is None:
        return True
    record = head.record

    def is_there(name: str, version: int) -> bool:
        other = heads[name]
        if other is None or other.version < version:
            return False
        return other.version > version or other.record.as_of == record.as_of

    return all(
        name in held or is_there(name, version)
        for name, version in (record.beside or {}).items()
        if name in heads
    )


def _flipped_head(
    store: Store, name: str, head: Snapshot | None, flipped: int | None
) -> Snapshot | None:
    """Return the version that readers are given instead of a head that is not whole.

    A component that has no warehouse version yet shows what is there, as it always did.
    """
    if head is None or flipped is None or head.version <= flipped:
        return head
    with contextlib.suppress(NotFound, WarehouseUnavailable):
        return formats.head(store, name, version=flipped)
    return head


def _fragment(
    store: Store,
    name: str,
    held: HeldFragment | None,
    head: Snapshot | None,
    flipped: int | None,
    lowest: int | None,
) -> FragmentState:
    """Return the state of a fragment; `lowest`: the oldest version that a view is made of."""
    target = _input(name, head) if held is None else held.as_input
    if target is None or flipped is None:
        return FragmentState(flipped, None, target, head, {}, is_urgent=True)
    if target.version == flipped == lowest:
        return FragmentState(flipped, target, target, head, {})
    given = head
    if head is None or head.version < flipped:
        given = None  # the table was restored: what readers are given is gone
    elif head.version > flipped:
        given = None  # as well, if the log has no entry of it any more
        with contextlib.suppress(NotFound, WarehouseUnavailable):
            given = formats.head(store, name, version=flipped)
    batches, is_urgent = {}, False
    oldest = flipped if lowest is None else lowest
    for entry in _entries(store, name, head, oldest):
        batches[entry.version] = _batch(entry)
        if entry.version > flipped:
            is_urgent |= entry.record is None or entry.record.restored is not None
            is_urgent |= entry.record is not None and bool(entry.record.repaired_files)
    if held is not None:
        is_urgent |= held.is_urgent
        if target.version not in batches:
            batches[target.version] = ProvenBatch(
                held.rows_changed, held.proven_at, _delay_s(held.job.report.view_phases)
            )
    if given is None or (head is not None and differs(head.layout, given.layout)):
        is_urgent = True
    return FragmentState(flipped, _input(name, given), target, head, batches, is_urgent)


def _entries(store: Store, name: str, head: Snapshot | None, oldest: int) -> list[LogEntry]:
    """Return the commits after the version `oldest`, up to the head."""
    if head is None or head.version <= oldest:
        return []
    entries = formats.entries(store, name, head, after=oldest)
    return [entry for entry in entries if entry.version <= head.version]


def _head(store: Store, name: str, flipped: int | None, *, is_held: bool) -> Snapshot | None:
    """Return the newest version; of a fragment that is not held the flipped one instead, if the
    newest is unreadable or older, as after a restore: its own refresh says what is wrong."""
    newest = None
    with contextlib.suppress(Exception):
        newest = formats.head(store, name)
    if is_held or flipped is None or (newest is not None and newest.version >= flipped):
        return newest
    try:
        return formats.head(store, name, version=flipped)
    except NotFound:
        if newest is not None:
            restored.refuse(name, newest, flipped)
        raise


def _input(name: str, snapshot: Snapshot | None) -> PinnedInput | None:
    return None if snapshot is None else PinnedInput.published(name, snapshot)


def _batch(entry: LogEntry) -> ProvenBatch:
    """Return the changes that a version brought."""
    proven_at = entry.committed.timestamp()
    if entry.record is None:
        return ProvenBatch(0, proven_at)
    report: Mapping[str, Any] = entry.record.report or {}
    with contextlib.suppress(ValueError, TypeError):
        proven_at = datetime.fromisoformat(report.get("proven_at") or "").timestamp()
    return ProvenBatch(
        entry.record.rows_changed, proven_at, _delay_s([*moved_views(report.get("view_phases"))])
    )


def _delay_s(phases: Sequence[MovedViews]) -> float:
    """Return the seconds of the view phases of a command before a fragment was proven."""
    return sum(phase.seconds for phase in phases)

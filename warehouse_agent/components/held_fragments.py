"""Fragments of a component that are proven and not committed, with their locks.

A fragment is held from its proof until it is committed together with the fragments and views that
move with it. Its lock is held as long, so what was proven stays the next version of its table.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from driftline.errors import DriftlineError, Locked

from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import Proven, ProvenEqual, ProvenVersion
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import restored
from warehouse_agent.refresh.schema_change import differs
from warehouse_agent.storage.store import Store
from warehouse_agent.views.evaluate import PinnedInput


@dataclass(frozen=True, slots=True)
class HeldFragment:
    """A fragment that is proven and not committed; `proven_at` in seconds since 1970."""

    job: Job
    proven: Proven
    proven_at: float

    @property
    def rows_changed(self) -> int:
        """Return the inserted, updated and deleted rows; 0 where they are not counted."""
        if isinstance(self.proven, ProvenEqual):
            return 0
        counts = self.proven.changes.counts
        return sum(counts.get(op, 0) for op in ("insert", "update_after", "delete"))

    @property
    def is_urgent(self) -> bool:
        """Return True if readers are not to wait for it: other columns, or repaired damage."""
        if isinstance(self.proven, ProvenEqual):
            return False
        p = self.proven.compared.prepared
        return p.base is None or bool(p.base.lost) or differs(p.layout, p.base.layout)

    @property
    def as_input(self) -> PinnedInput:
        """Return the version that the fragment will have, as an input of views."""
        match self.proven:
            case ProvenVersion(compared, applied, changes):
                before, layout = compared.prepared.base, compared.prepared.layout
                version = before.version + 1 if before else 0
                files = (*applied.added, *applied.kept)
                return PinnedInput(self.job.name, version, layout, files, feed=changes)
            case ProvenEqual(base=base):
                return PinnedInput.published(self.job.name, base)

    @property
    def read_at(self) -> str:
        """Return the source's time of the rows with which it was compared."""
        return self.proven.compared.found.as_of

    @property
    def snapshot(self) -> tuple[str, str] | None:
        """Return what names the snapshot of a new version: its source, and the time of its rows.

        None: nothing new is committed, or its rows are not of one instant.
        """
        if isinstance(self.proven, ProvenEqual):
            return None
        outcome = self.proven.compared.found
        source = self.job.fragment.source.name
        return (source, outcome.as_of) if outcome.consistency == "exact" else None

    @property
    def is_declared_right(self) -> bool:
        """Return False if nothing is to be written but what the table declares."""
        match self.proven:
            case ProvenEqual(compared, base):
                return restored.is_declared_right(base, compared.prepared.layout)
            case ProvenVersion():
                return True

    def commit(self, beside: Mapping[str, int], *, declaring: bool) -> bool:
        """Commit what was proven, and note it in the report; return False if that failed.

        Args:
            beside: versions, by name, that are committed with it from the same snapshot.
            declaring: as in `refresh.commit`.
        """
        job = self.job
        try:
            done = commit(job, self.proven, beside=beside, declaring=declaring)
            job.report.note_published(done)
            job.report.recovered()
        except Exception as problem:
            job.report.fail(job.steps.mistake(problem, job.name))
            self.discard()
            return False
        return True

    def discard(self) -> None:
        """Remove the files of what was not committed."""
        with contextlib.suppress(DriftlineError):
            self.job.discard()


@dataclass(slots=True)
class TakenFragments:
    """Fragments that leave the held ones to be committed, and the locks to let go of then."""

    held: Mapping[str, HeldFragment]
    locks: ExitStack
    is_last: bool
    _tried: set[str] = field(default_factory=set)

    def commit(self, *, declaring: bool = False) -> bool:
        """Commit all, back to back; return False if something could not be committed.

        declaring: every view over them moves with them.
        """
        done = [
            held.commit(self._beside(name), declaring=declaring) for name, held in self.held.items()
        ]
        self._tried = {*self.held}
        return all(done)

    def _beside(self, name: str) -> dict[str, int]:
        """Return the versions of the other fragments that are of the same snapshot."""
        snapshot = self.held[name].snapshot
        return {
            other: held.as_input.version
            for other, held in self.held.items()
            if snapshot is not None and other != name and held.snapshot == snapshot
        }

    def close(self) -> None:
        """Let go of the locks; remove the files of what was not committed."""
        with self.locks:
            for name, held in self.held.items():
                if name not in self._tried:
                    held.discard()


class HeldFragments:
    """Fragments of a component that a command holds, and those it waits for; safe for threads."""

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        """Wait for the fragments `names`: each is held, or stays where it is."""
        self._store = store
        self._guard = threading.Lock()
        self._waiting = set(names)
        self._held: dict[str, HeldFragment] = {}
        self._locks: dict[str, ExitStack] = {}
        self._is_over = False

    def lock(self, name: str) -> None:
        """Take the lock of a fragment. Raises Locked, WarehouseUnavailable.

        A fragment that is tried again has its lock already. When the turn is over, because another
        thread ended it, nobody would let go of a lock: then there is none.
        """
        with ExitStack() as stack:
            stack.enter_context(self._store.lock(name))
            with self._guard:
                if self._is_over:
                    raise Locked("The command is being ended.", where=name)
                self._locks[name] = stack.pop_all()

    def hold(self, job: Job, proven: Proven, proven_at: float) -> None:
        """Keep what is proven until it is taken."""
        with self._guard:
            self._held[job.name] = HeldFragment(job, proven, proven_at)
            self._waiting.discard(job.name)

    def leave(self, name: str) -> None:
        """Note that a fragment stays where it is: it failed, or was not started."""
        with self._guard:
            self._waiting.discard(name)

    @property
    def waiting(self) -> frozenset[str]:
        """Return the fragments that are still compared."""
        with self._guard:
            return frozenset(self._waiting)

    @property
    def held(self) -> dict[str, HeldFragment]:
        """Return what is proven and was not taken."""
        with self._guard:
            return dict(self._held)

    def take(self, names: Collection[str]) -> TakenFragments | None:
        """Take what is to be committed now; None if that is nothing, or all was taken before.

        When no fragment is waited for any more, everything is taken, once.
        """
        with self._guard:
            if self._is_over:
                return None
            is_last = self._is_over = not self._waiting
            if not names and not is_last:
                return None
            chosen = {*self._held} if is_last else {*names}
            kept = self._waiting | (self._held.keys() - chosen)
            locks = ExitStack()
            for name in [name for name in self._locks if name not in kept]:
                locks.push(self._locks.pop(name))
            return TakenFragments({n: self._held.pop(n) for n in sorted(chosen)}, locks, is_last)

    def abandon(self) -> None:
        """Give up what was not taken: remove its files, let go of its locks."""
        with self._guard:
            self._is_over = True
            held, self._held = self._held, {}
            locks, self._locks = self._locks, {}
        for one in held.values():
            one.discard()
        for stack in locks.values():
            stack.close()

"""Fragments of a component that are proven and not committed, with their locks.

A fragment is held from its proof until it is committed together with the fragments and views that
move with it. Its lock is held as long, so what was proven stays the next version of its table.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from driftline.errors import DriftlineError

from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import Proven, ProvenEqual, ProvenVersion
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage.store import Store
from warehouse_agent.views.evaluate import Input


@dataclass(frozen=True, slots=True)
class Held:
    """A fragment that is proven and not committed."""

    job: Job
    proven: Proven

    @property
    def moves(self) -> bool:
        """Return True if a new version is to be committed."""
        return isinstance(self.proven, ProvenVersion)

    @property
    def as_input(self) -> Input:
        """Return the version that the fragment will have, as an input of views."""
        match self.proven:
            case ProvenVersion(compared, applied, changes):
                before, layout = compared.prepared.base, compared.prepared.layout
                version = before.version + 1 if before else 0
                files = (*applied.added, *applied.kept)
                return Input(self.job.name, version, layout, files, feed=changes)
            case ProvenEqual(base=base):
                return Input.published(self.job.name, base)

    def commit(self) -> bool:
        """Commit what was proven, and note it in the report; return False if that failed."""
        job = self.job
        try:
            job.report.took(commit(job, self.proven))
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
class Taken:
    """Fragments that leave the held ones to be committed, and the locks to let go of then."""

    held: Mapping[str, Held]
    locks: ExitStack
    is_last: bool
    _left: set[str] = field(default_factory=set)

    @property
    def moves(self) -> bool:
        """Return True if a fragment has a new version."""
        return any(held.moves for held in self.held.values())

    def commit(self) -> bool:
        """Commit all, back to back; return False if something could not be committed."""
        done = [held.commit() for held in self.held.values()]
        self._left = {*self.held}
        return all(done)

    def close(self) -> None:
        """Let go of the locks; remove the files of what was not committed."""
        with self.locks:
            for name, held in self.held.items():
                if name not in self._left:
                    held.discard()


class HeldFragments:
    """What a command holds of the chosen fragments of a component; safe for threads."""

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        """Wait for the fragments `names`: each is held, or stays where it is."""
        self._store = store
        self._guard = threading.Lock()
        self._waiting = set(names)
        self._held: dict[str, Held] = {}
        self._locks: dict[str, ExitStack] = {}
        self._is_over = False

    def lock(self, name: str) -> None:
        """Take the lock of a fragment. Raises Locked, WarehouseUnavailable.

        A fragment that is tried again has its lock already.
        """
        stack = ExitStack()
        stack.enter_context(self._store.lock(name))
        with self._guard:
            self._locks[name] = stack

    def hold(self, job: Job, proven: Proven) -> None:
        """Keep what is proven until it is taken."""
        with self._guard:
            self._held[job.name] = Held(job, proven)
            self._waiting.discard(job.name)

    def left(self, name: str) -> None:
        """Note that a fragment stays where it is: it failed, or was not started."""
        with self._guard:
            self._waiting.discard(name)

    def take(self, choose: Callable[[set[str], Mapping[str, Held]], set[str]]) -> Taken | None:
        """Take what is to be committed now; None if that is nothing, or all was taken before.

        When nothing is waited for any more, everything is taken, once.

        Args:
            choose: names to take, from those that are waited for and those that are held.
        """
        with self._guard:
            if self._is_over:
                return None
            is_last = self._is_over = not self._waiting
            names = {*self._held} if is_last else choose(self._waiting, self._held)
            if not names and not is_last:
                return None
            kept = self._waiting | (self._held.keys() - names)
            locks = ExitStack()
            for name in [name for name in self._locks if name not in kept]:
                locks.push(self._locks.pop(name))
            return Taken({n: self._held.pop(n) for n in sorted(names)}, locks, is_last)

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

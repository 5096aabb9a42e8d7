"""The turn of a component: its fragments and the views over them move together.

A fragment with views is compared, written and proven as any other, and then held, with its lock
(`held_fragments`), until every chosen fragment of its component is proven or has finally failed.
Then the thread that brought the last one does the turn: it computes the views from the files of the
held versions, which no commit names yet (`view_phase`), commits fragments and views back to back,
and flips. Readers see all of it or none. A fragment that failed stays where it is, and the views
move with the others.

A view that fails stays behind, marked; with `on_failure = "hold"` nothing of the component is
flipped. A crash leaves heads ahead of the flip at worst: the next turn of the component finds that
a view is not made of the versions beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from driftline.errors import WarehouseUnavailable

from warehouse_agent.config import OnFailure, View
from warehouse_agent.events import RefreshNotStarted
from warehouse_agent.planning.flip import Kind, Member
from warehouse_agent.refresh.finish import Proven
from warehouse_agent.refresh.job import Job
from warehouse_agent.report import Report
from warehouse_agent.runs.command import Command
from warehouse_agent.runs.flips import fragment_member
from warehouse_agent.runs.held_fragments import HeldFragments, Taken
from warehouse_agent.runs.view_phase import PhaseOfView, ViewPhase
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.views.evaluate import Input
from warehouse_agent.views.graph import Component
from warehouse_agent.views.phase import Behind, Current


class ComponentTurn:
    """The fragments of one component that a command refreshes, and its views.

    `reports` has those of the views. Threads of several sources share it.
    """

    def __init__(
        self,
        command: Command,
        component: Component,
        fragments: set[str],
        views: list[View],
        left_out: list[View],
    ) -> None:
        """Wait for `fragments`, the chosen ones of the component; `views` move with them."""
        self._command, self._component = command, component
        self._left_out = left_out
        self._held = HeldFragments(command.store, fragments)
        self._reports = {view.name: Report(view.name) for view in views}
        self._views = ViewPhase(command, component, views, left_out, self._reports)

    @property
    def reports(self) -> Sequence[Report]:
        """Return the reports of the views."""
        return list(self._reports.values())

    def lock(self, name: str) -> None:
        """Take the lock of a fragment until the turn is over. Raises Locked, WarehouseUnavailable.

        A fragment that is tried again has its lock already.
        """
        self._held.lock(name)

    def hold(self, job: Job, proven: Proven) -> None:
        """Keep what is proven until the turn is done."""
        self._held.hold(job, proven)

    def left(self, name: str) -> None:
        """Note that a fragment stays where it is: it failed, or was not started."""
        self._held.left(name)

    def settle(self) -> None:
        """Do the turn if every fragment is proven or has failed, and nobody has done it."""
        taken = self._held.take(lambda _waiting, _held: set())
        if taken is not None:
            with closing(taken):
                try:
                    self._turn(taken)
                except Exception as problem:  # it stops no other component, nor the command
                    self._failed(taken, problem)

    def abandon(self) -> None:
        """End a turn that was not done: remove the files of held versions, let go of locks."""
        self._held.abandon()

    def _turn(self, taken: Taken) -> None:
        """Compute views, commit, flip; report every fragment and view."""
        newest = self._command.flips.newest()
        members = newest.members if newest else {}
        turned = self._views.decided(self._inputs(taken, members), members)
        is_current = all(isinstance(t.decision, Current) for t in turned)
        if taken.moves or self._left_out or not is_current:
            with self._views.locked():
                self._move(taken)
            return
        taken.commit()
        self._finish(taken, turned, newest.number if newest else None)

    def _move(self, taken: Taken) -> None:
        """Do the turn under the locks of the component's views."""
        turned: list[PhaseOfView] = []
        try:
            newest = self._command.flips.newest()
            before = dict(newest.members) if newest else {}
            turned = self._views.decided(self._inputs(taken, before), before, evaluating=True)
            newest = self._command.flips.newest()
            before = dict(newest.members) if newest else {}
            number = newest.number if newest else None
            after = dict(before)
            if taken.commit():
                self._place_fragments(taken, after, turned)
                self._views.commit(turned, after)
                if not self._holds(taken, turned):
                    number = self._flip(before, after)
            else:
                for one in turned:
                    one.error = one.error or _not_committed(one.view.name)
            self._finish(taken, turned, number)
        finally:
            for one in turned:
                one.remove(self._command.store)

    def _inputs(self, taken: Taken, members: Mapping[str, Member]) -> dict[str, Input | None]:
        """Return the versions of the component's fragments after this command."""
        return {
            name: held.as_input
            if (held := taken.held.get(name)) is not None
            else self._flipped(name, members.get(name))
            for name in self._component.fragments
        }

    def _flipped(self, name: str, member: Member | None) -> Input | None:
        """Return a fragment that is not held as an input; None if it was never published."""
        version = None if member is None else member.version
        found = formats.head(self._command.store, name, version=version)
        return None if found is None else Input.published(name, found)

    def _place_fragments(
        self, taken: Taken, after: dict[str, Member], turned: Sequence[PhaseOfView]
    ) -> None:
        """Put what was committed, and inputs that no flip has named yet, into `after`."""
        store, fragments = self._command.store, self._command.config.fragments
        needed = {n for one in turned for n in one.view.inputs if n in fragments}
        for name in sorted({*taken.held, *(needed - after.keys())}):
            if (snapshot := formats.head(store, name)) is not None:
                after[name] = fragment_member(store, fragments[name], snapshot)

    def _holds(self, taken: Taken, turned: Sequence[PhaseOfView]) -> bool:
        """Return True if a view that failed holds its component; say so in every report."""
        names = [t.view.name for t in turned if t.behind and t.view.on_failure is OnFailure.HOLD]
        for report in (*(h.job.report for h in taken.held.values()), *self.reports):
            report.held = f"{names[0]} failed, and its component waits for it" if names else None
        return bool(names)

    def _flip(self, before: dict[str, Member], after: dict[str, Member]) -> int | None:
        """Flip what moved; return the number of the warehouse version, None without a table."""
        flips, changed = self._command.flips, [m for n, m in after.items() if before.get(n) != m]
        if before:
            return flips.flip(changed)
        is_begun = any(m.kind is Kind.VIEW for m in after.values())
        return flips.begin(changed) if is_begun else None

    def _finish(self, taken: Taken, turned: Sequence[PhaseOfView], number: int | None) -> None:
        """Emit the reports of the fragments, then those of views."""
        command = self._command
        for held in taken.held.values():
            held.job.report.warehouse_version = number
            command.finished(held.job.report)
        for one in turned:
            report = one.report
            report.warehouse_version = number
            report.stale = one.behind
            if one.head is not None:
                record = one.head.record
                report.inputs = dict(record.inputs or {})
                report.consistency, report.proof = record.consistency, record.proof
                report.as_of, report.checked_at = record.as_of, record.checked_at
            if one.error is not None:
                report.fail(one.error)
            elif isinstance(one.decision, Behind):
                report.not_started = f"It stays as it is: {one.decision.why}."
                command.emit(RefreshNotStarted(report))
                continue
            command.finished(report)

    def _failed(self, taken: Taken, problem: Exception) -> None:
        """Emit the reports of a turn that an error ended; what was committed is not flipped."""
        for report in (*(held.job.report for held in taken.held.values()), *self.reports):
            if report.error is None:
                report.fail(mistake(problem, report.name))
            self._command.finished(report)


def _not_committed(name: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        "A fragment that moves with the view could not be committed, so the view was not.",
        where=name,
        remedy="Run the refresh again: it goes on from what was committed.",
    )

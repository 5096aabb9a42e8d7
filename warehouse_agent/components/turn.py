"""The turn of a component: its fragments and the views over them move together.

A fragment with views is compared, written and proven as any other, and then held, with its lock
(`held_fragments`). Where every chosen fragment of its component is proven or has finally failed,
the thread that brought the last one decides (`phase_schedule`):

- A view phase is due: the views are computed from the files of the held versions, which no commit
  names yet (`view_phase`); fragments and views are committed back to back; and the flip shows them.
  Readers see all of it or none. What was ahead already (`state`) comes along.
- It may wait (`max_lag`): the fragments are committed, and readers keep the warehouse version that
  they have. The next turn of the component decides again, also if nothing changed.

A phase may come earlier, while other sources are still compared: then only whole sources are in it.

A fragment that failed stays where it is, and the views move with the others. A view that fails
stays behind, marked; with `on_failure = "hold"` nothing of the component is flipped. A crash leaves
heads ahead of the flip at worst.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from driftline.errors import WarehouseUnavailable

from warehouse_agent.components import phase_schedule
from warehouse_agent.components.held_fragments import HeldFragments, TakenFragments
from warehouse_agent.components.phase_forecast import PhaseForecast
from warehouse_agent.components.phase_schedule import HeldChanges
from warehouse_agent.components.staleness import Staleness, measured
from warehouse_agent.components.state import ComponentState, state_of
from warehouse_agent.components.view_phase import BehindView, FailedView, PhaseOfView, ViewPhase
from warehouse_agent.config import Fragment, OnFailure
from warehouse_agent.events import RefreshNotStarted, refresh_ended
from warehouse_agent.history.notes import Notes
from warehouse_agent.refresh.finish import Proven
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.services import CommandServices
from warehouse_agent.report import MovedViews, Report, utc_at
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.views import component_graph
from warehouse_agent.views.component_graph import Component
from warehouse_agent.views.inputs import inputs_of
from warehouse_agent.views.maintenance.next_version import NextVersion
from warehouse_agent.views.selection import TableSelection
from warehouse_agent.visible_versions.flips import fragment_member
from warehouse_agent.visible_versions.members import Member


class ComponentTurn:
    """The fragments of one component that a command refreshes, and its views.

    `reports` has those of the views. Threads of several sources share it.
    """

    def __init__(
        self, services: CommandServices, component: Component, selection: TableSelection
    ) -> None:
        """Wait for the fragments of the component that are selected; their views move with them."""
        self._services, self._component = services, component
        fragments = [f for f in selection.fragments if f.name in component.fragments]
        self._left_out = [view for view in selection.left_out if view.name in component.views]
        out = {view.name for view in self._left_out}
        views = [services.config.views[name] for name in component.views if name not in out]
        self._is_prompt = any(view.max_lag_s == 0 for view in views)
        self._selected = [view.name for view in selection.views if view.name in component.views]
        self._is_named = bool(selection.named & {*component.views})
        self._reports = {name: services.begun(name) for name in self._selected}
        self._held = HeldFragments(services.store, (f.name for f in fragments))
        self._forecast = PhaseForecast(services, component, fragments, views)
        self._views = ViewPhase(services, component, self._left_out, self._reports)
        self._one_at_a_time = threading.Lock()
        self._phases: list[MovedViews] = []  # of this command
        self._staleness: dict[str, Staleness] = {}

    @property
    def fragments(self) -> Sequence[Fragment]:
        """Return the fragments of the component that the command refreshes."""
        return self._forecast.fragments

    @property
    def reports(self) -> Sequence[Report]:
        """Return the reports of the views that were selected, and of others that moved."""
        return [r for r in self._reports.values() if r.name in self._selected or _is_told(r)]

    def lock(self, name: str) -> None:
        """Take the lock of a fragment until it is committed. Raises Locked, WarehouseUnavailable.

        A fragment that is tried again has its lock already.
        """
        self._held.lock(name)

    def expect_views(self) -> None:
        """Begin to start Spark, beside the rest of a fragment's refresh that found changes, if a
        view follows it at once."""
        if self._is_prompt:
            self._services.steps.begin_joins()

    def hold(self, job: Job, proven: Proven) -> None:
        """Keep what is proven until it is committed."""
        now = time.time()
        job.report.proven_at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        job.report.view_phases = list(self._phases)
        self._held.hold(job, proven, now)

    def leave(self, name: str) -> None:
        """Note that a fragment stays where it is: it failed, or was not started."""
        self._held.leave(name)

    def settle(self) -> None:
        """Do what is due: the last phase when every fragment is proven or has failed, or another
        one before it where whole sources are proven."""
        with self._one_at_a_time:
            taken = self._held.take(self._within())
            if taken is not None:
                with closing(taken):
                    try:
                        self._turn(taken)
                    except Exception as problem:  # it stops no other component, nor the command
                        self._failed(taken, problem)

    def abandon(self) -> None:
        """End a turn that was not done: remove the files of held versions, let go of locks."""
        self._held.abandon()

    def _within(self) -> set[str]:
        """Return the fragments of a phase that is due while others are compared; or none."""
        waiting = self._held.waiting
        if not waiting or not self._forecast.has_boundaries:
            return set()
        held = self._held.held
        names = phase_schedule.cut(waiting, held, self._forecast.source_of, self._forecast.fuzzy)
        rows = sum(held[name].rows_changed for name in names)
        spent_s = sum(phase.seconds for phase in self._phases)
        if not names or not self._forecast.is_due_within(rows, waiting, spent_s):
            return set()
        return names

    def _turn(self, taken: TakenFragments) -> None:
        """Commit what is taken: with the views, and flip; or alone, if the views may wait."""
        state = self._state(taken)
        turned = self._decided(state)
        waiting = None
        is_moved = bool(state.names_ahead) or not all(one.is_current for one in turned)
        if is_moved or self._is_to_declare(taken, turned):
            waiting = self._waiting(state) if taken.is_last else None
            if waiting is None:
                with self._views.locked():
                    self._move(taken)
                return
        taken.commit()
        self._note(taken, turned, state.number, state.members)
        if waiting is not None:
            self._note_ahead(taken, turned, state, waiting)
        self._report(taken)

    def _is_to_declare(self, taken: TakenFragments, turned: Sequence[PhaseOfView]) -> bool:
        """Return True if tables are to be published once more for what they declare."""
        if not self._moves_all(turned):
            return False
        heads = (one.state.head for one in turned)
        is_right = all(held.is_declared_right for held in taken.held.values())
        return not is_right or any(head is not None and head.declares_too_much for head in heads)

    def _moves_all(self, turned: Sequence[PhaseOfView]) -> bool:
        """Return True if no view stays that is made of the versions before."""
        return {one.view.name for one in turned} == {*self._component.views}

    def _state(self, taken: TakenFragments) -> ComponentState:
        """Read the versions of the component's fragments."""
        newest = self._services.flips.newest()
        members: Mapping[str, Member] = newest.members if newest else {}
        number = newest.number if newest else None
        names = self._component.fragments
        return state_of(self._services.store, names, taken.held, members, number)

    def _moving(self, state: ComponentState) -> set[str]:
        """Return the views that move: those selected, and those over anything that is ahead."""
        above = component_graph.above(state.names_ahead, inputs_of(self._services.config.views))
        return {*self._selected, *above}

    def _decided(self, state: ComponentState, *, evaluating: bool = False) -> list[PhaseOfView]:
        """Decide what becomes of the views once the fragments are what they will be."""
        moving = self._moving(state)
        return self._views.decided(
            state.targets, state.members, moving, self._read_at(state), evaluating=evaluating
        )

    def _read_at(self, state: ComponentState) -> Callable[[str], str]:
        """Return a function that returns the source's time of a fragment's rows."""
        store = self._services.store

        def read_at(name: str) -> str:
            one = state.fragments[name]
            if one.read_at is not None:
                return one.read_at
            assert one.head is not None, "it is an input of a view that is decided"
            return Notes.read(store, name).comparison(one.head).as_of

        return read_at

    def _waiting(self, state: ComponentState) -> HeldChanges | None:
        """Return the changes that wait for a later command; None: the last phase is due now."""
        options, limits = self._services.options, self._forecast.limits
        if limits.max_lag_s == 0 or self._is_named or options.repair or options.anew:
            return None
        if (ahead := state.ahead) is None or state.is_urgent:
            return None
        # A view that is new, stale or changed does not wait.
        moving, read_at = self._moving(state), self._read_at(state)
        given = self._views.decided(state.visible, state.members, moving, read_at)
        if not all(one.is_current for one in given):
            return None
        reason = phase_schedule.due(ahead, limits, self._forecast.between(), time.time())
        return ahead if reason is None else None

    def _move(self, taken: TakenFragments) -> None:
        """Do a view phase under the locks of the component's views."""
        began, turned = time.monotonic(), list[PhaseOfView]()
        try:
            state = self._state(taken)
            turned = self._decided(state, evaluating=True)
            after, number, is_flipped = dict(state.members), state.number, False
            if taken.commit(declaring=self._moves_all(turned)):
                self._place_fragments(taken, state, after)
                self._views.commit(turned, after)
                self._views.note_current(turned, after)
                if not self._holds(taken, turned):
                    number, is_flipped = self._flip(state.members, after), True
            else:
                for one in turned:
                    one.fail(_not_committed(one.view.name))
            self._measure(turned, state, after if is_flipped else {}, time.monotonic() - began)
            self._note(taken, turned, number, after if is_flipped else state.members)
            self._report(taken)
        finally:
            for one in turned:
                one.remove(self._services.store)

    def _place_fragments(
        self, taken: TakenFragments, state: ComponentState, after: dict[str, Member]
    ) -> None:
        """Put what was committed, and what was ahead, into `after`."""
        store, fragments = self._services.store, self._services.config.fragments
        for name in sorted({*taken.held, *state.names_ahead}):
            job = taken.held[name].job if name in taken.held else None
            if job is not None:  # without locks, a newer version may be there already
                snapshot = formats.head(store, name, version=job.report.version)
            else:
                snapshot = state.fragments[name].head
            if snapshot is not None:
                notes = None if job is None else job.notes
                after[name] = fragment_member(store, fragments[name], snapshot, notes)

    def _holds(self, taken: TakenFragments, turned: Sequence[PhaseOfView]) -> bool:
        """Return True if a view that failed holds its component; say so in every report."""
        names = [t.view.name for t in turned if t.behind and t.view.on_failure is OnFailure.HOLD]
        for report in (*(h.job.report for h in taken.held.values()), *self._reports.values()):
            report.held = f"{names[0]} failed, and its component waits for it" if names else None
        return bool(names)

    def _flip(self, before: Mapping[str, Member], after: Mapping[str, Member]) -> int | None:
        """Flip what moved; return the number of the warehouse version, None without a table."""
        changed = [member for name, member in after.items() if before.get(name) != member]
        names = (*self._component.fragments, *self._component.views)
        return self._services.flips.move(changed, before, names)

    def _measure(
        self,
        turned: Sequence[PhaseOfView],
        state: ComponentState,
        after: Mapping[str, Member],
        seconds: float,
    ) -> None:
        """Note a phase, and how stale the views are that it moved; `after`: what is flipped."""
        now, ahead = time.time(), state.ahead
        made = [one.made for one in turned if one.made is not None]
        is_typical = (
            bool(after)
            and not any(isinstance(one.state, FailedView) for one in turned)
            and all(not isinstance(m, NextVersion) or m.base is not None for m in made)
        )
        if made:
            rows = ahead.rows if ahead is not None and is_typical else None
            at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
            self._phases.append(MovedViews(rows, round(seconds, 3), at))
        inputs = inputs_of(self._services.config.views)
        for one in turned:
            name = one.view.name
            one.report.view_phases = list(self._phases)
            if (before := state.members.get(name)) is None or one.behind or name not in after:
                continue
            if before.version == after[name].version and before.inputs == after[name].inputs:
                continue
            batches = [
                batch
                for fragment in sorted(component_graph.below([name], inputs))
                for known in [state.fragments[fragment]]
                for batch in known.since(before.inputs.get(fragment, known.flipped))
            ]
            staleness = measured(batches, now)
            if staleness is not None and (known_before := self._staleness.get(name)) is not None:
                staleness = known_before.merged(staleness)
            if staleness is not None:
                self._staleness[name] = staleness
            one.report.staleness = _staleness(self._staleness.get(name), now, after[name].as_of)

    def _note(
        self,
        taken: TakenFragments,
        turned: Sequence[PhaseOfView],
        number: int | None,
        members: Mapping[str, Member],
    ) -> None:
        """Put the result of a phase into the reports of its fragments and views.

        `members`: of that warehouse version. It knows what a view is made of that keeps its version
        because nothing changed in it.
        """
        for held in taken.held.values():
            held.job.report.warehouse_version = number
        for one in turned:
            report = one.report
            report.warehouse_version = number
            report.stale = one.behind
            report.not_started = None
            if (head := one.state.head) is not None:
                record, member = head.record, members.get(one.view.name)
                is_shown = member and member.version == head.version
                known = member if member and is_shown else record
                report.inputs = dict(known.inputs or {})
                report.consistency, report.proof = known.consistency, known.proof
                report.as_of, report.checked_at = known.as_of, record.checked_at
            if isinstance(one.state, FailedView):
                report.fail(one.state.error)
                continue
            report.recovered()
            if isinstance(one.state, BehindView):
                report.not_started = f"It stays as it is: {one.state.why}."

    def _note_ahead(
        self,
        taken: TakenFragments,
        turned: Sequence[PhaseOfView],
        state: ComponentState,
        ahead: HeldChanges,
    ) -> None:
        """Say in the reports what waits for a later phase, and until when."""
        limits = self._forecast.limits
        body = {
            "rows": ahead.rows,
            "chunk_rows": phase_schedule.chunk_rows(limits, self._forecast.between()),
            "since": utc_at(ahead.since),
            "due_by": utc_at(ahead.since + limits.max_lag_s),
        }
        for held in taken.held.values():
            if held.job.name in state.names_ahead:
                held.job.report.ahead = body
        above = component_graph.above(state.names_ahead, inputs_of(self._services.config.views))
        for one in turned:
            if one.view.name in above:
                one.report.ahead = body

    def _report(self, taken: TakenFragments) -> None:
        """Emit the reports of the fragments; those of the views after the last phase."""
        services = self._services
        for held in taken.held.values():
            services.emit(refresh_ended(held.job.report))
        if not taken.is_last:
            return
        for report in self.reports:
            if report.not_started is not None:
                services.emit(RefreshNotStarted(report))
            else:
                services.emit(refresh_ended(report))

    def _failed(self, taken: TakenFragments, problem: Exception) -> None:
        """Report what an error ended; what was committed is not flipped."""
        for report in (*(held.job.report for held in taken.held.values()), *self.reports):
            if report.error is None:
                report.fail(mistake(problem, report.name))
        self._report(taken)


def _is_told(report: Report) -> bool:
    """Return True if something became of a view that was not selected."""
    return bool(report.attempts or report.error or report.stale)


def _staleness(staleness: Staleness | None, flipped_at: float, as_of: str) -> dict[str, Any]:
    """Return the staleness of a view as a report has it, in seconds.

    `age_s` is what readers feel: the flip minus the source's time of the rows, by two clocks.
    """
    body: dict[str, Any] = {"rows": 0, "s1_s": None, "s2_s": None, "vs_s": None}
    if staleness is not None:
        s1, s2, vs = (round(s, 3) for s in (staleness.s1_s, staleness.s2_s, staleness.vs_s))
        body = {"rows": staleness.rows, "s1_s": s1, "s2_s": s2, "vs_s": vs}
    try:
        age_s = round(flipped_at - datetime.fromisoformat(as_of).timestamp(), 3)
    except ValueError:
        age_s = None
    return body | {"age_s": age_s}


def _not_committed(name: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        "A table that moves with the view could not be committed, so the view was not.",
        where=name,
        remedy="Run the refresh again: it goes on from what was committed.",
    )

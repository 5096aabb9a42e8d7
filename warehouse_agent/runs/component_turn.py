"""The turn of a component: its fragments and the views over them move together.

A fragment with views is compared, written and proven as any other, and then held, with its lock,
until every chosen fragment of its component is proven or has finally failed. Then the thread that
brought the last one does the turn: it computes the views from the files of the held versions, which
no commit names yet, commits fragments and views back to back, and flips. Readers see all of it or
none. A fragment that failed stays where it is, and the views move with the others.

A view that fails stays behind, marked; with `on_failure = "hold"` nothing of the component is
flipped. A crash leaves heads ahead of the flip at worst: the next turn of the component finds that
a view is not made of the versions beside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from driftline.errors import DriftlineError, Locked, WarehouseUnavailable

from warehouse_agent.config import OnFailure, View
from warehouse_agent.events import PhaseStarted, RefreshNotStarted, RefreshStarted
from warehouse_agent.planning.flip import Kind, Member
from warehouse_agent.refresh.commit import commit
from warehouse_agent.refresh.finish import Proven, ProvenEqual, ProvenVersion
from warehouse_agent.refresh.job import Job
from warehouse_agent.report import Report, utc_now
from warehouse_agent.runs.command import Command
from warehouse_agent.runs.flips import fragment_member, view_member, weakest
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewViewVersion, VersionRecord, ViewSnapshot
from warehouse_agent.views.evaluate import Input
from warehouse_agent.views.graph import Component
from warehouse_agent.views.inputs import query_of
from warehouse_agent.views.phase import Behind, Current, Decision, Evaluate, Head, decide
from warehouse_agent.views.recompute import RecomputedView, UnchangedView, recompute

LOCK_WAIT_S = 600.0  # for another command that computes views of this component
_TRY_S = 0.5  # between two attempts to take a lock
_LEFT_OUT = "left out with --without"


@dataclass(frozen=True, slots=True)
class _Held:
    job: Job
    proven: Proven

    @property
    def moves(self) -> bool:
        """Return True if a new version is to be committed."""
        return isinstance(self.proven, ProvenVersion)


@dataclass(slots=True)
class _Turned:
    """What became of one view in a turn; `head` is its newest version that is committed."""

    view: View
    report: Report
    decision: Decision
    head: ViewSnapshot | None
    made: RecomputedView | UnchangedView | None = None
    is_committed: bool = False
    error: DriftlineError | None = None

    @property
    def behind(self) -> str | None:
        """Return why the view stays behind; None if it does not."""
        if self.error is not None:
            return self.error.message
        return self.decision.why if isinstance(self.decision, Behind) else None

    @property
    def as_input(self) -> Input | None:
        """Return the view as an input of views over it."""
        if isinstance(self.made, RecomputedView):
            version = self.made.base.version + 1 if self.made.base else 0
            return Input(self.view.name, version, self.made.layout, self.made.added)
        if (head := self.head) is None:
            return None
        return Input(self.view.name, head.version, head.layout, head.files)

    def remove(self, store: Store) -> None:
        """Remove files of a version that was not committed."""
        if isinstance(made := self.made, RecomputedView) and not self.is_committed:
            for folder in made.folders:
                store.remove(self.view.name, folder)


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
        self.reports: list[Report] = []
        self._command, self._component = command, component
        self._views, self._left_out = views, left_out
        self._guard = threading.Lock()
        self._waiting = set(fragments)
        self._held: dict[str, _Held] = {}
        self._locks = ExitStack()
        self._is_over = False

    def lock(self, name: str) -> None:
        """Take the lock of a fragment until the turn is over. Raises Locked, WarehouseUnavailable.

        A fragment that is tried again has its lock already.
        """
        with self._guard:
            self._locks.enter_context(self._command.store.lock(name))

    def hold(self, job: Job, proven: Proven) -> None:
        """Keep what is proven until the turn is done."""
        with self._guard:
            self._held[job.name] = _Held(job, proven)
            self._waiting.discard(job.name)

    def left(self, name: str) -> None:
        """Note that a fragment stays where it is: it failed, or was not started."""
        with self._guard:
            self._waiting.discard(name)

    def settle(self) -> None:
        """Do the turn if every fragment is proven or has failed, and nobody has done it."""
        with self._guard:
            if self._waiting or self._is_over:
                return
            self._is_over = True
        try:
            with self._locks:
                self._turn()
        finally:
            self._discard()

    def abandon(self) -> None:
        """End a turn that was not done: remove the files of held versions, let go of locks."""
        with self._guard:
            was_over, self._is_over = self._is_over, True
        if not was_over:
            self._discard()
            self._locks.close()

    def _discard(self) -> None:
        """Remove the files of what was held and not committed."""
        for held in self._held.values():
            with contextlib.suppress(DriftlineError):
                held.job.discard()
        self._held.clear()

    def _turn(self) -> None:
        """Compute views, commit, flip; report every fragment and view."""
        turned = self._decided()
        moves = any(held.moves for held in self._held.values())
        if moves or self._left_out or not all(isinstance(t.decision, Current) for t in turned):
            with self._locked_views():
                self._move()
            return
        newest = self._command.flips.newest()
        self._commit_fragments()
        self._finish(turned, newest.number if newest else None)

    def _move(self) -> None:
        """Do the turn under the locks of the component's views."""
        turned: list[_Turned] = []
        try:
            turned = self._decided(evaluating=True)
            newest = self._command.flips.newest()
            before = dict(newest.members) if newest else {}
            number = newest.number if newest else None
            after = dict(before)
            if self._commit_fragments():
                self._place_fragments(after, turned)
                self._commit_views(after, turned)
                if not self._holds(turned):
                    number = self._flip(before, after)
            else:
                for one in turned:
                    one.error = one.error or _not_committed(one.view.name)
            self._finish(turned, number)
        finally:
            for one in turned:
                one.remove(self._command.store)

    @contextlib.contextmanager
    def _locked_views(self) -> Iterator[None]:
        """Hold the locks of the component's views; wait for a command that has one.

        Raises:
            Locked: it has them for too long.
        """
        command = self._command
        until = time.monotonic() + LOCK_WAIT_S
        with ExitStack() as stack:
            for name in sorted(self._component.views):
                while True:
                    try:
                        stack.enter_context(command.store.lock(name))
                        break
                    except Locked:
                        if time.monotonic() > until:
                            raise
                        command.sleep(_TRY_S)
            yield

    def _decided(self, *, evaluating: bool = False) -> list[_Turned]:
        """Decide what becomes of each view, in order; compute those that need it if told to."""
        command = self._command
        newest = command.flips.newest()
        members = newest.members if newest else {}
        inputs = {name: self._input(name, members.get(name)) for name in self._component.fragments}
        behind: dict[str, str] = {}
        turned = []
        out = {view.name for view in self._left_out}
        moving = {view.name: view for view in self._views}
        for name in self._component.views:
            member = members.get(name)
            if name not in moving:
                if name in out:
                    behind[name] = _LEFT_OUT
                inputs[name] = self._view_input(name, member)
                continue
            one = self._one(moving[name], inputs, behind, member)
            turned.append(one)
            if evaluating:
                self._evaluate(one, inputs)
            if one.behind is not None:
                behind[name] = one.behind
            inputs[name] = one.as_input
        return turned

    def _one(
        self,
        view: View,
        inputs: dict[str, Input | None],
        behind: dict[str, str],
        member: Member | None,
    ) -> _Turned:
        """Decide what becomes of one view; a table that cannot be read is an error of the view."""
        report = next((r for r in self.reports if r.name == view.name), None)
        if report is None:
            report = Report(view.name)
            self.reports.append(report)
        try:
            head = formats.view_head(self._command.store, view.name)
            if head is not None:
                report.version = report.previous_version = head.version
                report.rows_total = head.rows
            known = {n: None if one is None else one.version for n, one in inputs.items()}
            same = None
            if head is not None:
                is_good = view.name not in self._command.options.anew
                is_good = is_good and _is_same(view, head, inputs)
                same = Head(head.version, head.record.inputs or {}, is_good)
            decision = decide(view, known, behind, member, same)
            return _Turned(view, report, decision, head)
        except Exception as problem:
            error = mistake(problem, view.name)
            return _Turned(view, report, Evaluate(), None, error=error)

    def _evaluate(self, one: _Turned, inputs: dict[str, Input | None]) -> None:
        """Compute a view that needs it."""
        if one.error is not None or not isinstance(one.decision, Evaluate):
            return
        command, name = self._command, one.view.name
        command.emit(RefreshStarted(name, 1))
        one.report.attempts += 1
        one.report.method = "recompute"
        try:
            chosen = [given for n in one.view.inputs if (given := inputs[n]) is not None]
            size = sum(f.size for given in chosen for f in given.files)
            command.emit(PhaseStarted(name, "evaluate"))
            with one.report.phase("evaluate"):
                one.report.places["evaluate"] = "spark"
                one.made = recompute(
                    command.steps.spark(size),
                    command.store,
                    name,
                    query_of(one.view),
                    chosen,
                    one.head,
                    accept_schema=command.options.accept_schema,
                    anew=name in command.options.anew,
                )
        except Exception as problem:
            one.error = command.steps.mistake(problem, name)

    def _input(self, name: str, member: Member | None) -> Input | None:
        """Return the version of a fragment after this command; None if it was never published."""
        if (held := self._held.get(name)) is not None:
            match held.proven:
                case ProvenVersion(compared, applied):
                    before, layout = compared.prepared.base, compared.prepared.layout
                    after = before.version + 1 if before else 0
                    return Input(name, after, layout, (*applied.added, *applied.kept))
                case ProvenEqual(base=base):
                    return Input(name, base.version, base.layout, base.files)
        version = None if member is None else member.version
        found = formats.head(self._command.store, name, version=version)
        return None if found is None else Input(name, found.version, found.layout, found.files)

    def _view_input(self, name: str, member: Member | None) -> Input | None:
        """Return a view that does not move in this command as an input."""
        if member is None:
            return None
        found = formats.view_head(self._command.store, name, version=member.version)
        return None if found is None else Input(name, found.version, found.layout, found.files)

    def _commit_fragments(self) -> bool:
        """Commit what is held; return False if something could not be committed."""
        is_whole = True
        for held in self._held.values():
            job = held.job
            try:
                job.report.took(commit(job, held.proven))
                job.report.recovered()
            except Exception as problem:
                job.report.fail(job.steps.mistake(problem, job.name))
                is_whole = False
                with contextlib.suppress(DriftlineError):
                    job.discard()
        return is_whole

    def _place_fragments(self, after: dict[str, Member], turned: list[_Turned]) -> None:
        """Put what was committed, and inputs that no flip has named yet, into `after`."""
        store, fragments = self._command.store, self._command.config.fragments
        needed = {n for one in turned for n in one.view.inputs if n in fragments}
        for name in sorted({*self._held, *(needed - after.keys())}):
            if (snapshot := formats.head(store, name)) is not None:
                after[name] = fragment_member(store, fragments[name], snapshot)

    def _commit_views(self, after: dict[str, Member], turned: list[_Turned]) -> None:
        """Commit the views that were computed, and put all into `after`; each after its inputs."""
        now, behind = utc_now(), dict[str, str]()
        for one in turned:
            name, made = one.view.name, one.made
            late = next((n for n in one.view.inputs if n in behind), None)
            if one.behind is None and late is not None:
                one.decision = Behind(f"its input {late} is stale", name not in after)
            try:
                if one.behind is None:
                    inputs = [after[n] for n in dict.fromkeys(one.view.inputs)]
                    if isinstance(made, RecomputedView):
                        self._commit_view(one, made, inputs)
                    assert one.head is not None, "a view that is not computed is published"
                    after[name] = view_member(self._command.store, name, one.head, inputs)
            except Exception as problem:
                one.error = mistake(problem, name)
            if one.behind is not None:
                behind[name] = one.behind
                one.report.stale = one.behind
                if name in after:
                    after[name] = after[name].marked(one.behind, now)
        for view in self._left_out:
            known = after.get(view.name)
            if known is not None and any(after[n].version != v for n, v in known.inputs.items()):
                after[view.name] = known.marked(_LEFT_OUT, now)

    def _commit_view(self, one: _Turned, made: RecomputedView, inputs: list[Member]) -> None:
        """Commit a view as its next version."""
        store, name, report = self._command.store, one.view.name, one.report
        with report.phase("publish"):
            _count(report, made)
            now = utc_now()
            record = VersionRecord(
                as_of=min(m.as_of for m in inputs),
                checked_at=now,
                consistency=weakest("consistency", inputs),
                proof=weakest("proof", inputs),
                rows=made.rows,
                published_at=now,
                changes=made.changes.folder,
                changes_files=made.changes.files,
                rows_inserted=report.rows_inserted,
                rows_updated=report.rows_updated,
                rows_deleted=report.rows_deleted,
                method=report.method,
                inputs={m.name: m.version for m in inputs},
                checked="total",
            )
            removed = made.base.files if made.base else ()
            new = NewViewVersion(made.base, made.layout, made.added, removed, record)
            formats.commit(store, name, new)
            one.is_committed = True
            one.head = formats.view_head(store, name)

    def _holds(self, turned: list[_Turned]) -> bool:
        """Return True if a view that failed holds its component; say so in every report."""
        names = [t.view.name for t in turned if t.behind and t.view.on_failure is OnFailure.HOLD]
        for report in (*(h.job.report for h in self._held.values()), *self.reports):
            report.held = f"{names[0]} failed, and its component waits for it" if names else None
        return bool(names)

    def _flip(self, before: dict[str, Member], after: dict[str, Member]) -> int | None:
        """Flip what moved; return the number of the warehouse version, None without a table."""
        flips, changed = self._command.flips, [m for n, m in after.items() if before.get(n) != m]
        if before:
            return flips.flip(changed)
        is_begun = any(m.kind is Kind.VIEW for m in after.values())
        return flips.begin(changed) if is_begun else None

    def _finish(self, turned: list[_Turned], number: int | None) -> None:
        """Emit the reports of held fragments, then those of views."""
        command = self._command
        for held in self._held.values():
            held.job.report.warehouse_version = number
            command.finished(held.job.report)
        self._held.clear()
        for one in turned:
            report = one.report
            report.warehouse_version = number
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


def _is_same(view: View, head: ViewSnapshot, inputs: dict[str, Input | None]) -> bool:
    """Return True if a view's newest version has its query and the columns of its inputs.

    Settings and Spark's version are compared when the view is computed.
    """
    now = [None if (one := inputs[name]) is None else one.identity for name in view.inputs]
    recipe = head.layout.recipe
    return recipe.query == query_of(view).text and [*recipe.inputs] == now


def _count(report: Report, made: RecomputedView) -> None:
    """Put the counts of a new version into a view's report."""
    base, counts = made.base, made.changes.counts
    report.version = base.version + 1 if base else 0
    report.rows_total = made.rows
    report.schema_changed = base is not None and base.layout != made.layout
    report.rows_inserted = counts.get("insert", 0) if base else made.rows
    report.rows_updated = counts.get("update_after", 0)
    report.rows_deleted = counts.get("delete", 0)
    report.bytes_rewritten = sum(f.size for f in base.files) if base else 0


def _not_committed(name: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(
        "A fragment that moves with the view could not be committed, so the view was not.",
        where=name,
        remedy="Run the refresh again: it goes on from what was committed.",
    )

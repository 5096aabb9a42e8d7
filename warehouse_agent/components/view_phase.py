"""One view phase of a component: what becomes of each view, its rows, and their commit.

Each view is decided after the views that it reads, computed from files that no commit may name yet,
and committed after the fragments. An error is that of its view: the views over it stay behind, and
no other view does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from driftline.errors import DriftlineError, Locked, NotFound, WarehouseUnavailable

from warehouse_agent.components.view_decision import (
    CurrentView,
    NewestViewVersion,
    StaleView,
    ViewAdoption,
    decide,
    torn,
)
from warehouse_agent.config import View
from warehouse_agent.events import RefreshStarted
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.refresh.derivation import noted_offer
from warehouse_agent.refresh.services import CommandServices
from warehouse_agent.report import Report, utc_now
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.elapsed import Moment
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import NewViewVersion, VersionRecord, ViewSnapshot
from warehouse_agent.tasks import file_damage
from warehouse_agent.tasks.steps import Phases, StepLog
from warehouse_agent.views.component_graph import Component
from warehouse_agent.views.evaluate import PinnedInput, chosen_by, has_inputs_of, lacking
from warehouse_agent.views.inputs import query_of
from warehouse_agent.views.maintenance.affected_keys import made_of
from warehouse_agent.views.maintenance.maintain import maintain, note_current
from warehouse_agent.views.maintenance.next_version import Computed, NextVersion, UnchangedView
from warehouse_agent.views.maintenance.view_job import ViewJob
from warehouse_agent.visible_versions.flips import view_member, weakest
from warehouse_agent.visible_versions.members import Member

_log = logging.getLogger("driftline")

LOCK_WAIT_S = 600.0  # for another command that computes views of this component
_TRY_S = 0.5  # between two attempts to take a lock
_LEFT_OUT = "left out with --without"


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """The newest version of the view stays the newest; `is_current`: readers are given it."""

    head: ViewSnapshot
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class DueView:
    """The view is to be computed; `head`: its newest version, None before the first."""

    head: ViewSnapshot | None


@dataclass(frozen=True, slots=True)
class ComputedVersion:
    """The next version of the view is computed, and no commit names its files."""

    head: ViewSnapshot | None
    made: NextVersion


@dataclass(frozen=True, slots=True)
class CommittedVersion:
    """The version that was computed is committed, and no flip shows it yet."""

    head: ViewSnapshot


@dataclass(frozen=True, slots=True)
class BehindView:
    """The view cannot follow its inputs, for the reason `why`."""

    head: ViewSnapshot | None
    why: str


@dataclass(frozen=True, slots=True)
class FailedView:
    """An error ended the work on the view, which stays behind."""

    head: ViewSnapshot | None
    error: DriftlineError


ViewState = KeptVersion | DueView | ComputedVersion | CommittedVersion | BehindView | FailedView


@dataclass(slots=True)
class PhaseOfView:
    """One view in a phase.

    Attributes:
        state: its latest; `state.head` is the newest version that is committed.
        made: what was computed for it in this phase, whatever becomes of it.
        is_tried: the commit was begun, which may have been made although it failed.
        is_committed: the commit was made, whatever failed after it.
    """

    view: View
    report: Report
    state: ViewState
    made: Computed | None = None
    is_tried: bool = False
    is_committed: bool = False
    begun: Moment = field(default_factory=Moment.now)

    @property
    def behind(self) -> str | None:
        """Return why the view stays behind; None if it does not."""
        match self.state:
            case FailedView(error=error):
                return error.message
            case BehindView(why=why):
                return why
            case _:
                return None

    @property
    def is_current(self) -> bool:
        """Return True if readers are given what the phase would give them."""
        return isinstance(self.state, KeptVersion) and self.state.is_current

    @property
    def as_input(self) -> PinnedInput | None:
        """Return the view as an input of views over it."""
        name = self.view.name
        match self.state:
            case ComputedVersion(made=made):
                version = made.base.version + 1 if made.base else 0
                return PinnedInput(name, version, made.layout, made.files, feed=made.changes)
            case state:
                return None if state.head is None else PinnedInput.published(name, state.head)

    def fail(self, error: DriftlineError) -> None:
        """Note what ended the work on the view; an earlier error stays."""
        if not isinstance(self.state, FailedView):
            self.state = FailedView(self.state.head, error)

    def remove(self, store: Store) -> None:
        """Remove files of a version that was not committed, as `Job.discard`."""
        if not isinstance(made := self.made, NextVersion) or self.is_committed:
            return
        name, version = self.view.name, made.base.version + 1 if made.base else 0
        needed = formats.needed_after_failure(store, name, version if self.is_tried else None)
        if needed is None:
            return
        for folder in made.folders:
            if not any(path.startswith(f"{folder}/") for path in needed):
                store.remove(name, folder)


class ViewPhase:
    """The views of a component that move in a command, in one phase of it."""

    def __init__(
        self,
        services: CommandServices,
        component: Component,
        left_out: Sequence[View],
        reports: dict[str, Report],
    ) -> None:
        """Put what becomes of views into `reports`, by name; `left_out` stay as they are."""
        self._services, self._component = services, component
        self._left_out, self._reports = left_out, reports
        self._anew = {*services.options.anew}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the component's views; wait for a command that has one.

        Raises:
            Locked: it has them for too long.
        """
        services = self._services
        until = time.monotonic() + LOCK_WAIT_S
        with ExitStack() as stack:
            for name in sorted(self._component.views):
                while True:
                    try:
                        stack.enter_context(services.store.lock(name))
                        break
                    except Locked:
                        if time.monotonic() > until:
                            raise
                        services.sleep(_TRY_S)
                self._take_back(name)
            yield

    def _take_back(self, name: str) -> None:
        """Publish our last version of a view again if another program wrote after it.

        Views have no fingerprints by which rows of other files could be recognized. If our files
        are gone, the view is computed anew. What cannot be read is an error of the view, later.
        """
        store = self._services.store
        with contextlib.suppress(WarehouseUnavailable, NotFound):
            formats.mend(store, name)
            head = formats.view_head(store, name) if formats.has_log(store, name) else None
            if head is not None and head.other is not None and head.other.unreadable is None:
                if file_damage.absent(store, name, head.files):
                    self._anew.add(name)
                formats.put_back(store, name, head)

    def decided(
        self,
        fragments: Mapping[str, PinnedInput | None],
        members: Mapping[str, Member],
        moving: Collection[str],
        read_at: Callable[[str], str],
        *,
        evaluating: bool = False,
    ) -> list[PhaseOfView]:
        """Decide what becomes of each view, in order; compute those that need it if told to.

        Args:
            fragments: the component's fragments as they will be; None: never published.
            members: of the newest warehouse version.
            moving: names of the views that move with them; the others stay as flipped.
            read_at: returns the source's time of a fragment's rows.
        """
        inputs = dict(fragments)
        behind: dict[str, str] = {}
        turned = []
        out = {view.name for view in self._left_out}
        for name in self._component.views:
            member = members.get(name)
            if name not in moving or name in out:
                if name in out:
                    behind[name] = _LEFT_OUT
                elif member is not None and member.stale is not None:
                    behind[name] = member.stale
                inputs[name] = self._unmoved(name, member)
                continue
            one = self._one(self._services.config.views[name], inputs, behind, member, read_at)
            turned.append(one)
            if evaluating:
                self._evaluate(one, inputs)
            if one.behind is not None:
                behind[name] = one.behind
            inputs[name] = one.as_input
        return turned

    def commit(self, turned: Sequence[PhaseOfView], after: dict[str, Member]) -> None:
        """Commit the views that were computed, and put all into `after`, beside their inputs."""
        now, behind = utc_now(), dict[str, str]()
        for one in turned:
            name = one.view.name
            late = next((n for n in one.view.inputs if n in behind), None)
            if one.behind is None and late is not None:
                one.state = BehindView(one.state.head, f"its input {late} is stale")
            try:
                if one.behind is None:
                    inputs = [after[n] for n in dict.fromkeys(one.view.inputs)]
                    if isinstance(one.state, ComputedVersion):
                        one.state = self._committed(one, one.state.made, inputs)
                    if isinstance(one.state, KeptVersion):
                        one.state = self._declared_anew(one, one.state)
                    if isinstance(one.state, KeptVersion | CommittedVersion):
                        head = one.state.head
                        after[name] = view_member(self._services.store, name, head, inputs)
            except Exception as problem:
                one.state = FailedView(one.state.head, mistake(problem, name))
            if one.behind is not None:
                behind[name] = one.behind
                if name in after:
                    after[name] = after[name].marked(one.behind, now)
        for view in self._left_out:
            known = after.get(view.name)
            if known is None:
                continue
            now_there = {n: after[n].version for n in known.inputs if n in after}  # not if removed
            if now_there != known.inputs:
                after[view.name] = known.marked(_LEFT_OUT, now)

    def _declared_anew(self, one: PhaseOfView, kept: KeptVersion) -> KeptVersion:
        """Publish a kept version once more, without a file, if it declares too much, as older
        releases did; what cannot be committed now is left to a later phase."""
        store, name, head = self._services.store, one.view.name, kept.head
        if not head.declares_too_much:
            return kept
        record = formats.same_rows(head.record, adopted=head.version)
        new = NewViewVersion(head, head.layout, added=(), removed=(), record=record)
        try:
            version = formats.commit(store, name, new)
        except (Locked, WarehouseUnavailable):
            _log.debug("the columns of %s stay declared as they are", name, exc_info=True)
            return kept
        newest = formats.view_head(store, name, version=version)
        assert newest is not None, "it was just committed"
        one.report.version = version
        if isinstance(one.made, UnchangedView):
            one.made = replace(one.made, base=newest)
        return KeptVersion(newest, kept.is_current)

    def note_current(self, turned: Sequence[PhaseOfView], after: Mapping[str, Member]) -> None:
        """Note for what committed versions of their inputs views that did not change are right."""
        for one in turned:
            if one.behind is None and isinstance(one.made, UnchangedView):
                name = one.view.name
                note_current(self._services.store, name, one.made, after[name].inputs)

    def _one(
        self,
        view: View,
        inputs: Mapping[str, PinnedInput | None],
        behind: Mapping[str, str],
        member: Member | None,
        read_at: Callable[[str], str],
    ) -> PhaseOfView:
        """Decide what becomes of one view; a table that cannot be read is an error of the view."""
        report = self._reports.setdefault(view.name, self._services.begun(view.name))
        try:
            head = formats.view_head(self._services.store, view.name)
            if head is not None:
                if head.other is not None:
                    formats.refuse_unreadable(view.name, head.other)
                report.version = head.version
                report.rows_total = head.rows
                if not report.attempts:
                    report.previous_version = head.version
            known = {n: None if one is None else one.version for n, one in inputs.items()}
            same = None
            if head is not None:
                is_good = view.name not in self._anew and head.other is None
                is_good = is_good and _is_same(view, head, inputs)
                same = NewestViewVersion(head.version, head.record.inputs or {}, is_good)
            state: ViewState = DueView(head)
            match decide(view, known, behind, member, same):
                case StaleView(why=why):
                    state = BehindView(head, why)
                case CurrentView() if head is not None:
                    state = KeptVersion(head, is_current=True)
                case ViewAdoption() if head is not None:
                    state = KeptVersion(head)
                case _ if (why_not := self._unfit(view, inputs, read_at)) is not None:
                    state = BehindView(head, why_not)
            return PhaseOfView(view, report, state)
        except Exception as problem:
            return PhaseOfView(view, report, FailedView(None, mistake(problem, view.name)))

    def _unfit(
        self,
        view: View,
        inputs: Mapping[str, PinnedInput | None],
        read_at: Callable[[str], str],
    ) -> str | None:
        """Return why a view cannot be made of these versions; None if it can.

        A column that no relation has is left to the evaluation, which says where it is written.
        """
        known = [one for name in view.inputs if (one := inputs[name]) is not None]
        store, relations = self._services.store, dict[str, frozenset[str]]()
        for name in {one.name for one in known}:
            if (reply := noted_offer(store, name)) is not None:
                columns = (column.name.lower() for column in reply.description.columns)
                relations[name] = frozenset(columns)
        query = query_of(view)
        why = lacking(view.name, query, known, relations)
        return why or torn(chosen_by(view.name, query, known), read_at)

    def _evaluate(self, one: PhaseOfView, inputs: Mapping[str, PinnedInput | None]) -> None:
        """Compute a view that needs it."""
        if not isinstance(one.state, DueView):
            return
        services, name, head = self._services, one.view.name, one.state.head
        one.report.attempts += 1
        services.emit(RefreshStarted(name, one.report.attempts))
        try:
            chosen = [given for n in one.view.inputs if (given := inputs[n]) is not None]
            steps = replace(services.steps, log=StepLog.of(one.report))
            one.made = made = maintain(
                ViewJob(
                    name,
                    query_of(one.view),
                    chosen,
                    head,
                    services.store,
                    steps,
                    one.report,
                    services.emit,
                ),
                one.view.maintain,
                accept_schema=services.options.accept_schema,
                anew=name in self._anew,
            )
            match made:
                case NextVersion():
                    one.state = ComputedVersion(head, made)
                case UnchangedView(base=base):
                    one.state = KeptVersion(base)
            WarehouseFailpoint.VIEW_COMPUTED.reach()
        except Exception as problem:
            one.fail(services.steps.mistake(problem, name))

    def _unmoved(self, name: str, member: Member | None) -> PinnedInput | None:
        """Return a view that does not move in this phase as an input."""
        if member is None:
            return None
        snapshot = formats.view_head(self._services.store, name, version=member.version)
        return None if snapshot is None else PinnedInput.published(name, snapshot)

    def _committed(
        self, one: PhaseOfView, made: NextVersion, inputs: list[Member]
    ) -> CommittedVersion:
        """Commit a view as its next version, and return it."""
        store, name, report = self._services.store, one.view.name, one.report
        phase = Phases(report, StepLog.of(report), self._services.emit)
        with phase("publish"):
            counts = _count(report, made)
            now, versions = utc_now(), {m.name: m.version for m in inputs}
            record = VersionRecord(
                as_of=min(m.as_of for m in inputs),
                checked_at=now,
                consistency=weakest("consistency", inputs),
                proof=weakest("proof", inputs),
                rows=made.rows,
                published_at=now,
                changes=made.changes.folder,
                changes_files=made.changes.files,
                rows_inserted=counts.inserted,
                rows_updated=counts.updated,
                rows_deleted=counts.deleted,
                method=report.method,
                inputs=versions,
                checked=made.checked.value,
                made_of=made_of(store, versions),
                java=made.java,
            )
            new = NewViewVersion(
                made.base, made.layout, made.added, made.removed, record, one.begun
            )
            one.is_tried = True
            version = formats.commit(store, name, new)
            WarehouseFailpoint.VIEW_COMMITTED.reach()
            one.is_committed = True
            head = formats.view_head(store, name, version=version)
        assert head is not None, "it was just committed"
        return CommittedVersion(head)


def _is_same(view: View, head: ViewSnapshot, inputs: Mapping[str, PinnedInput | None]) -> bool:
    """Return True if a view's newest version has its query and the columns of its inputs, and was
    made of none that began anew with the same number.

    Settings and Spark's version are compared when the view is computed.
    """
    present = [one for name in view.inputs if (one := inputs[name]) is not None]
    query, recipe, record = query_of(view), head.layout.recipe, head.record
    versions, stamps = record.inputs or {}, record.made_of or {}
    began_anew = any(
        one.version == versions.get(one.name) and one.stamp != stamps.get(one.name, one.stamp)
        for one in present
    )
    is_whole = recipe.query == query.text and len(present) == len(view.inputs)
    return is_whole and not began_anew and has_inputs_of(recipe, query, present)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Changed rows of a view between two of its versions."""

    inserted: int
    updated: int
    deleted: int


def _count(report: Report, made: NextVersion) -> _Counts:
    """Return the counts of a new version; add them to a view's report."""
    base, counts = made.base, made.changes.counts
    rows = _Counts(
        counts.get("insert", 0) if base else made.rows,
        counts.get("update_after", 0),
        counts.get("delete", 0),
    )
    report.version = base.version + 1 if base else 0
    report.rows_total = made.rows
    report.schema_changed |= base is not None and base.layout != made.layout
    report.rows_inserted += rows.inserted
    report.rows_updated += rows.updated
    report.rows_deleted += rows.deleted
    report.bytes_rewritten += sum(f.size for f in made.removed)
    return rows

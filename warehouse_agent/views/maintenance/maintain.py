"""Bring a view to given versions of its inputs: by affected keys, or recomputed.

Recomputation is always right. The incremental way is taken where it is possible and, with
`maintain = "auto"`, cheaper (`planning.view_cost`). It is not possible for a first load, for
another recipe or another Java, and where the change feeds do not certainly hold all changes
(`affected_keys`). If its proof fails, or another error that a retry does not cure and that is not
the query's, nothing is published, and a note lets the next refresh recompute the view.

Notes of a view lie beside those of fragments, and may be lost: what was learned of the phases'
prices, a failed proof, and the versions of the inputs for which the published rows were last found
right although nothing was published, by which Java, and the number of times that this was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from driftline.errors import DriftlineError, ProofFailed, RecipeChanged, ViewFailed

from warehouse_agent.config import Maintain
from warehouse_agent.history.view_notes import ValidInputsNote, ViewNotes
from warehouse_agent.planning import view_cost
from warehouse_agent.planning.view_cost import ViewChoice, ViewMethod, ViewWork
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.views.evaluate import PinnedInput, stamp_of
from warehouse_agent.views.maintenance import incremental
from warehouse_agent.views.maintenance.affected_keys import (
    FeedFiles,
    MissingFeed,
    feeds_since,
    made_of,
)
from warehouse_agent.views.maintenance.incremental import MaintainableView
from warehouse_agent.views.maintenance.next_version import Computed, UnchangedView
from warehouse_agent.views.maintenance.recompute import recompute
from warehouse_agent.views.maintenance.view_job import ViewAt, ViewJob


@dataclass(frozen=True, slots=True)
class MaintenanceChoice:
    """The way in which a view is computed, and why.

    Attributes:
        plan: of the maintenance by affected keys; None: the view is recomputed.
        prices: of both ways; None if only one is possible.
    """

    why: str
    plan: MaintainableView | None = None
    prices: ViewChoice | None = None

    @property
    def method(self) -> ViewMethod:
        """Return the method."""
        return ViewMethod.RECOMPUTE if self.plan is None else ViewMethod.INCREMENTAL


def maintain(
    job: ViewJob, asked: Maintain, *, accept_schema: bool = False, anew: bool = False
) -> Computed:
    """Compute the next version of a view; the report says how, and why.

    Args:
        asked: as configured.
        accept_schema: go on if the recipe is another one, without a feed.
        anew: the published rows are wrong or cannot be read: write a version without a feed.

    Raises:
        RecipeChanged: the query, an input's columns, settings or Spark's version are others.
        ConfigurationError, ViewFailed: the query cannot be evaluated.
        ProofFailed: the new rows are wrong; nothing was written.
        WarehouseUnavailable: files cannot be read or written.
    """
    notes = ViewNotes.read(job.store, job.name)
    chosen = choose(job.store, job, asked, notes, accept_schema=accept_schema, anew=anew)
    before = dict(job.report.seconds)
    job.report.method, job.report.method_why = chosen.method.value, chosen.why
    computed: Computed | MissingFeed = MissingFeed(chosen.why)
    if chosen.plan is not None:
        try:
            computed = incremental.maintain(job, chosen.plan)
        except Exception as problem:
            if _is_ours(job, problem):
                _distrust(job, chosen.plan.base, notes)
            raise
    if isinstance(computed, MissingFeed):
        job.report.method, job.report.method_why = ViewMethod.RECOMPUTE.value, computed.why
        job.steps.spark_to_join(job.input_bytes)  # its start is no part of the phase's price
        with job.phase("evaluate"):
            computed = recompute(
                job.steps.spark_to_join(job.input_bytes),
                job.store,
                job,
                accept_schema=accept_schema,
                anew=anew,
            )
    _learn(job, chosen.plan, before, notes)
    return computed


def choose(
    store: Store,
    view: ViewAt,
    asked: Maintain,
    notes: ViewNotes,
    *,
    accept_schema: bool = False,
    anew: bool = False,
    changed_rows_least: int = 0,
) -> MaintenanceChoice:
    """Choose how a view is computed, without reading rows.

    changed_rows_least: changed rows that are priced at least, for a forecast.
    """
    inputs, base = view.inputs, view.base
    if base is None:
        return MaintenanceChoice("it is the first version")
    if anew:
        return MaintenanceChoice("its published rows are not to be trusted")
    if asked is Maintain.RECOMPUTE:
        return MaintenanceChoice("`maintain` says so")
    if accept_schema:
        return MaintenanceChoice("the view may mean something else now")
    if notes.distrusted == stamp_of(base):
        return MaintenanceChoice("its last incremental maintenance failed")
    record, feeds = notes.record(base.record, stamp_of(base)), dict[str, tuple[FeedFiles, ...]]()
    for one in inputs:
        if one.name not in feeds:
            own_feeds = feeds_since(store, one, record)
            if isinstance(own_feeds, MissingFeed):
                return MaintenanceChoice(own_feeds.why)
            feeds[one.name] = own_feeds
    number = base.version + 1 + notes.times_current
    plan = incremental.feasible(view.name, view.query, inputs, base, feeds, number, record.java)
    work = _work(inputs, base, plan, changed_rows_least)
    prices = view_cost.choose(work, notes.factors)
    if asked is Maintain.INCREMENTAL:
        return MaintenanceChoice("`maintain` says so", plan, prices)
    is_cheaper = prices.method is ViewMethod.INCREMENTAL
    return MaintenanceChoice(prices.why, plan if is_cheaper else None, prices)


def _work(
    inputs: Sequence[PinnedInput],
    base: ViewSnapshot,
    plan: MaintainableView | None,
    changed_rows_least: int = 0,
) -> ViewWork:
    """Return the amounts by which the methods are priced."""
    rows = [sum(f.rows for f in one.files) for one in inputs]
    whole = plan.reduction.whole if plan is not None and plan.reduction is not None else ()
    changed = changed_rows_least
    if plan is not None:
        fed = sum(feed.rows for one in inputs for feed in plan.feeds[one.name])
        changed = max(changed, fed)
    return ViewWork(
        input_rows=sum(rows),
        input_files=sum(len(one.files) for one in inputs),
        view_rows=base.rows,
        view_files=len(base.files),
        changed_rows=changed,
        whole_rows=sum(rows[i] for i in whole),
    )


def note_current(store: Store, name: str, view: UnchangedView, inputs: Mapping[str, int]) -> None:
    """Note that a published version is right for these committed versions of its inputs."""
    with contextlib.suppress(DriftlineError):  # a note that cannot be written is lost
        before, stamps = ViewNotes.read(store, name), made_of(store, inputs)
        times = before.times_current + 1
        current = ValidInputsNote(stamp_of(view.base), view.java, dict(inputs), stamps, times)
        replace(before, current=current, distrusted=None).write(store, name, before)


def _is_ours(job: ViewJob, problem: Exception) -> bool:
    """Return True if incremental maintenance may fail again, and a recomputation may not."""
    error = job.steps.mistake(problem, job.name)
    if isinstance(error, ProofFailed):
        return True
    return not error.is_retryable and not isinstance(error, ViewFailed | RecipeChanged)


def _distrust(job: ViewJob, base: ViewSnapshot, notes: ViewNotes) -> None:
    """Note that the next refresh recomputes what follows a version."""
    with contextlib.suppress(DriftlineError):
        replace(notes, distrusted=stamp_of(base)).write(job.store, job.name, notes)


def _learn(
    job: ViewJob, plan: MaintainableView | None, before: Mapping[str, float], notes: ViewNotes
) -> None:
    """Note what the phases took, if there was a version to compare with."""
    if (base := job.base) is None:
        return
    took = {p: s - before.get(p, 0.0) for p, s in job.report.seconds.items()}
    with contextlib.suppress(DriftlineError):
        factors = view_cost.learnt(notes.factors, _work(job.inputs, base, plan), took)
        # What a recomputation makes is not committed yet: until then its base is distrusted.
        distrusted = notes.distrusted if notes.distrusted == stamp_of(base) else None
        learnt = replace(notes, factors=factors, distrusted=distrusted)
        learnt.write(job.store, job.name, notes)

"""Bring a view to given versions of its inputs: by affected keys, or recomputed.

Recomputation is always right. The incremental road is taken where it is possible and, with
`maintain = "auto"`, cheaper (`planning.view_cost`). It is not possible for a first load, for
another recipe or another Java, and where the change feeds do not certainly hold all changes
(`affected_keys`). If its proof fails, or something else that is no matter of the view's query and
not gone when it is tried again, nothing is published, and the next refresh recomputes the view: a
note says so.

Notes of a view lie beside those of fragments, and may be lost: what was learned of the phases'
prices, a failed proof, and the versions of the inputs for which the published rows were last found
right although nothing was published, by which Java, and the number of times that this was found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from driftline.errors import DriftlineError, ProofFailed, RecipeChanged, ViewFailed

from warehouse_agent.config import Maintain
from warehouse_agent.planning import view_cost
from warehouse_agent.planning.view_cost import ViewChoice, ViewMethod, ViewWork
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import VersionRecord, ViewSnapshot
from warehouse_agent.views.evaluate import Input, stamp_of
from warehouse_agent.views.maintenance import incremental
from warehouse_agent.views.maintenance.affected_keys import FeedFiles, NoFeed, feeds_since, made_of
from warehouse_agent.views.maintenance.incremental import Feasible
from warehouse_agent.views.maintenance.next_version import Computed, UnchangedView
from warehouse_agent.views.maintenance.recompute import recompute
from warehouse_agent.views.maintenance.view_job import ViewJob
from warehouse_agent.views.query import Query

_DISTRUSTED = "distrusted"  # key of the notes: the version whose successor failed
_CURRENT = "current"  # key of the notes: what the published version is still right for


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way in which a view is computed, and why.

    Attributes:
        plan: of the maintenance by affected keys; None: the view is recomputed.
        prices: of both ways; None if only one is possible.
    """

    why: str
    plan: Feasible | None = None
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
    chosen = choose(
        job.store,
        job.name,
        job.query,
        job.inputs,
        job.base,
        asked,
        accept_schema=accept_schema,
        anew=anew,
    )
    before = dict(job.report.seconds)
    job.report.method, job.report.method_why = chosen.method.value, chosen.why
    found: Computed | NoFeed = NoFeed(chosen.why)
    if chosen.plan is not None:
        try:
            found = incremental.maintain(job, chosen.plan)
        except Exception as problem:
            if _is_ours(job, problem):
                _distrust(job, chosen.plan.base)
            raise
    if isinstance(found, NoFeed):
        job.report.method, job.report.method_why = ViewMethod.RECOMPUTE.value, found.why
        job.steps.spark(job.input_bytes)  # its start is no part of the phase's price
        with job.phase("evaluate"):
            found = recompute(
                job.steps.spark(job.input_bytes),
                job.store,
                job.name,
                job.query,
                job.inputs,
                job.base,
                accept_schema=accept_schema,
                anew=anew,
            )
    _learn(job, chosen.plan, before)
    return found


def choose(
    store: Store,
    name: str,
    query: Query,
    inputs: Sequence[Input],
    base: ViewSnapshot | None,
    asked: Maintain,
    *,
    accept_schema: bool = False,
    anew: bool = False,
    changed_rows_least: int = 0,
) -> Chosen:
    """Choose how a view is computed, without reading rows.

    Args:
        inputs, base: as of `ViewJob`.
        changed_rows_least: changed rows that are priced at least, for a forecast.
    """
    if base is None:
        return Chosen("it is the first version")
    if anew:
        return Chosen("its published rows are not to be trusted")
    if asked is Maintain.RECOMPUTE:
        return Chosen("`maintain` says so")
    if accept_schema:
        return Chosen("the view may mean something else now")
    notes = notes_of(store, name)
    if notes.get(_DISTRUSTED) == stamp_of(base):
        return Chosen("its last incremental maintenance failed")
    record, feeds = _record(base, notes), dict[str, tuple[FeedFiles, ...]]()
    for one in inputs:
        if one.name not in feeds:
            found = feeds_since(store, one, record)
            if isinstance(found, NoFeed):
                return Chosen(found.why)
            feeds[one.name] = found
    number = base.version + 1 + _times_current(notes)
    plan = incremental.feasible(name, query, inputs, base, feeds, number, record.java)
    work = _work(inputs, base, plan, changed_rows_least)
    prices = view_cost.choose(work, view_cost.factors(notes))
    if asked is Maintain.INCREMENTAL:
        return Chosen("`maintain` says so", plan, prices)
    is_cheaper = prices.method is ViewMethod.INCREMENTAL
    return Chosen(prices.why, plan if is_cheaper else None, prices)


def _work(
    inputs: Sequence[Input], base: ViewSnapshot, plan: Feasible | None, changed_rows_least: int = 0
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


def notes_of(store: Store, name: str) -> dict[str, object]:
    """Return the notes of a view; empty if there are none, or they are damaged."""
    return store.read_json(PRIVATE, "fragments", f"{name}.json")


def note_current(store: Store, name: str, found: UnchangedView, inputs: Mapping[str, int]) -> None:
    """Note that a published version is right for these committed versions of its inputs."""
    current = {
        "version": stamp_of(found.base),
        "java": found.java,
        "inputs": dict(inputs),
        "made_of": made_of(store, inputs),
        "times": _times_current(notes_of(store, name)) + 1,
    }
    _note(store, name, {_CURRENT: current})


def _note(store: Store, name: str, more: Mapping[str, object]) -> None:
    """Add to the notes. A note that cannot be written is lost."""
    try:
        known = notes_of(store, name) | dict(more)
        store.write(json.dumps(known).encode(), PRIVATE, "fragments", f"{name}.json")
    except DriftlineError:
        pass


def _record(base: ViewSnapshot, notes: Mapping[str, object]) -> VersionRecord:
    """Return the record of the published version, with the newest inputs it is right for."""
    noted = notes.get(_CURRENT)
    if not isinstance(noted, dict) or noted.get("version") != stamp_of(base):
        return base.record
    inputs, stamps = noted.get("inputs"), noted.get("made_of")
    if not isinstance(inputs, dict) or not isinstance(stamps, dict):
        return base.record
    if not all(type(v) is int for v in inputs.values()) or inputs.keys() != stamps.keys():
        return base.record
    java = noted.get("java")
    java = java if isinstance(java, str) else base.record.java
    return replace(base.record, inputs=inputs, made_of=stamps, java=java)


def _times_current(notes: Mapping[str, object]) -> int:
    """Return how often published versions were found right for newer inputs."""
    noted = notes.get(_CURRENT)
    times = noted.get("times") if isinstance(noted, dict) else None
    return times if type(times) is int else 0


def _is_ours(job: ViewJob, problem: Exception) -> bool:
    """Return True if incremental maintenance may fail again, and a recomputation may not."""
    error = job.steps.mistake(problem, job.name)
    if isinstance(error, ProofFailed):
        return True
    return not error.is_retryable and not isinstance(error, ViewFailed | RecipeChanged)


def _distrust(job: ViewJob, base: ViewSnapshot) -> None:
    _note(job.store, job.name, {_DISTRUSTED: stamp_of(base)})


def _learn(job: ViewJob, plan: Feasible | None, before: Mapping[str, float]) -> None:
    """Note what the phases took, if there was a version to compare with."""
    if (base := job.base) is None:
        return
    took = {p: s - before.get(p, 0.0) for p, s in job.report.seconds.items()}
    learned = view_cost.factors(notes_of(job.store, job.name))
    notes = view_cost.new_notes(learned, _work(job.inputs, base, plan), took)
    if job.report.method == ViewMethod.RECOMPUTE:
        notes[_DISTRUSTED] = None
    _note(job.store, job.name, notes)

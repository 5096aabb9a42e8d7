"""`plan` and `verify` of views, and what `status` says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from driftline.errors import NotFound

from warehouse_agent.components.state import state_of
from warehouse_agent.config import View, WarehouseConfig
from warehouse_agent.history.refresh_history import read, refreshes
from warehouse_agent.history.view_notes import ViewNotes
from warehouse_agent.report import Report, counted, utc_at, utc_now
from warehouse_agent.runs.each_fragment import published_view
from warehouse_agent.spark import session
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.table_maintenance.verification import check_files
from warehouse_agent.tasks.steps import StepLog, Steps
from warehouse_agent.views import component_graph
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.inputs import inputs_of, query_of
from warehouse_agent.views.maintenance.maintain import MaintenanceChoice, choose
from warehouse_agent.views.maintenance.recompute import verified
from warehouse_agent.views.maintenance.view_job import ViewAt
from warehouse_agent.visible_versions import warehouse_versions

REFRESHES = 5  # of a view, whose median seconds are those of the next one


@dataclass(frozen=True, slots=True)
class ViewForecast:
    """Forecast of a refresh of a view; rows and bytes are those of the inputs' newest versions.

    `what` is the method, and `why` its reason; the seconds that both are expected to take are None
    if only one is possible. `seconds`: the median of the last view phases; None if there was none.
    `ahead`: changed rows of its component that wait for it, since when, and until when at most;
    None: none do.
    """

    name: str
    what: str
    why: str
    recompute_s: float | None
    incremental_s: float | None
    version: int | None
    inputs: dict[str, int | None]
    rows_read: int
    bytes_read: int
    seconds: float | None
    ahead: dict[str, Any] | None = None

    def to_json(self) -> str:
        """Return the forecast as one line of JSON."""
        return json.dumps(asdict(self))

    def text(self) -> str:
        """Return the forecast for a person."""
        from_ = ", ".join(
            f"{name} version {version}" if version is not None else f"{name}, not loaded yet"
            for name, version in self.inputs.items()
        )
        took = "" if self.seconds is None else f"; earlier ones took {self.seconds:,.1f} s"
        if (ahead := self.ahead) is not None:
            rows = counted(ahead["rows"], "changed row")
            took += f"; {rows} already wait for it, since {ahead['since']}, until {ahead['due_by']}"
        return (
            f"{self.name}: view, {self.what} if an input moves ({self.why}), from {from_}: "
            f"{counted(self.rows_read, 'row')}, {counted(self.bytes_read, 'byte')}{took}"
        )


def forecast(store: Store, view: View, config: WarehouseConfig) -> ViewForecast:
    """Predict a refresh of a view from what is published. Raises WarehouseUnavailable."""
    base = formats.view_head(store, view.name)
    heads = {name: formats.any_head(store, name) for name in dict.fromkeys(view.inputs)}
    times = read(store, view.name, refreshes(REFRESHES)).durations_s(REFRESHES)
    files = [f for one in heads.values() if one is not None for f in one.files]
    inputs = [
        PinnedInput.published(name, snapshot)
        for name in view.inputs
        if (snapshot := heads[name]) is not None
    ]
    chosen = MaintenanceChoice("an input was never published")
    if len(inputs) == len(view.inputs):
        usual = sum(one.record.rows_changed for one in heads.values() if one is not None)
        chosen = choose(
            store,
            ViewAt(view.name, query_of(view), inputs, base),
            view.maintain,
            ViewNotes.read(store, view.name),
            changed_rows_least=usual,
        )
    return ViewForecast(
        name=view.name,
        what=chosen.method.value,
        why=chosen.why,
        recompute_s=None if chosen.prices is None else chosen.prices.recompute_s,
        incremental_s=None if chosen.prices is None else chosen.prices.incremental_s,
        version=None if base is None else base.version,
        inputs={name: None if one is None else one.version for name, one in heads.items()},
        rows_read=sum(f.rows for f in files),
        bytes_read=sum(f.size for f in files),
        seconds=sorted(times)[len(times) // 2] if times else None,
        ahead=_ahead(store, view, config),
    )


def _ahead(store: Store, view: View, config: WarehouseConfig) -> dict[str, Any] | None:
    """Return what waits for a view and those that move with it."""
    newest = warehouse_versions.newest(store) if warehouse_versions.exists(store) else None
    if newest is None:
        return None
    components = component_graph.components(inputs_of(config.views))
    component = next(one for one in components if view.name in one.views)
    ahead = state_of(store, component.fragments, {}, newest.members, newest.number).ahead
    if ahead is None:
        return None
    lag_s = min(config.views[name].max_lag_s for name in component.views)
    return {
        "rows": ahead.rows,
        "since": utc_at(ahead.since),
        "due_by": utc_at(ahead.since + lag_s),
    }


def verify(
    config: WarehouseConfig, store: Store, spark: session.DeferredSession, view: View
) -> Report:
    """Compute the newest version of a view again from what it was made of; return a report.

    Raises:
        NotFound: it is not published, or an input's version is gone.
        ProofFailed: rows differ.
        RecipeChanged: the view means something else now.
    """
    published = published_view(store, view.name)
    report = Report(view.name, "verify", published.version, published.version, method="recompute")
    check_files(store, view.name, published)  # before Spark is started
    made_of = _made_of(store, view.name, published)
    inputs = []
    for name in view.inputs:
        snapshot = formats.any_head(store, name, version=made_of.get(name))
        if snapshot is None:
            raise NotFound(
                f"Its input {name} is not published.",
                where=view.name,
                remedy=f"Run `driftline refresh {name}`.",
            )
        inputs.append(PinnedInput(name, snapshot.version, snapshot.layout, snapshot.files))
    with report.phase("verify"):
        size = sum(f.size for one in inputs for f in one.files)
        steps = Steps(spark, config.small_bytes, StepLog(report.places, ["verify"]), store)
        rows = verified(steps.spark(size), view.name, query_of(view), inputs, published)
    report.rows_total, report.proof, report.checked_at = rows, "values", utc_now()
    report.inputs = dict(made_of)
    return report


def _made_of(store: Store, name: str, published: ViewSnapshot) -> Mapping[str, int]:
    """Return the newest versions of the inputs for which the published version is right.

    The version of the warehouse says so: a view that nothing changed in keeps its version while its
    inputs move, and `gc` removes the files of those that it was made of.
    """
    member = warehouse_versions.visible_member(store, name)
    if member is None or member.version != published.version:
        return published.record.inputs or {}
    return member.inputs

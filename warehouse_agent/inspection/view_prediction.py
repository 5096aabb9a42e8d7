"""What a refresh of a view would do and cost, predicted from what is published (`plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from warehouse_agent.components.state import state_of
from warehouse_agent.config import View, WarehouseConfig
from warehouse_agent.history.refresh_history import read, refreshes
from warehouse_agent.history.view_notes import ViewNotes
from warehouse_agent.inspection import site_shares
from warehouse_agent.inspection.place_prediction import Places, places_of_view
from warehouse_agent.planning.site_joins import SiteJoinPrice
from warehouse_agent.report import utc_at
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.views import component_graph
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.inputs import inputs_of, query_of
from warehouse_agent.views.maintenance.maintain import MaintenanceChoice, choose
from warehouse_agent.views.maintenance.view_job import ViewAt
from warehouse_agent.visible_versions import warehouse_versions

REFRESHES = 5  # of a view, whose median seconds are those of the next one


@dataclass(frozen=True, slots=True)
class WaitingChanges:
    """Changed rows of a component that wait for a view, since when, and until when at most; times
    are ISO 8601 in UTC."""

    rows: int
    since: str
    due_by: str


@dataclass(frozen=True, slots=True)
class ViewForecast:
    """Forecast of a refresh of a view; rows and bytes are those of the inputs' newest versions.

    `what` is the method, and `why` its reason; the seconds that both are expected to take are None
    if only one is possible. `seconds`: the median of the last view phases; None if there was none.
    `ahead`: what waits for it; None: nothing does. `places_expected`: where it runs, and why.
    `site_joins`: what joins at sites would take, of each relation of which they are possible; none
    if the view has them.
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
    ahead: WaitingChanges | None = None
    places_expected: Places = field(default_factory=dict)
    site_joins: tuple[SiteJoinPrice, ...] = ()


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
        places_expected=places_of_view(sum(f.size for f in files)),
        site_joins=site_shares.joins_priced(config, view),
    )


def _ahead(store: Store, view: View, config: WarehouseConfig) -> WaitingChanges | None:
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
    return WaitingChanges(ahead.rows, utc_at(ahead.since), utc_at(ahead.since + lag_s))

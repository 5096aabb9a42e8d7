"""What a refresh of a fragment would do and cost, before it is done (`plan`).

No row of the source is read, and of ours at most the statistics of rows (`part_prediction`). The
inputs are the published version, earlier refreshes and, if it answers, the source's description.
`planning` prices the candidates as in a refresh, so a forecast is wrong only where its inputs are:
the number of changed rows is predicted from earlier refreshes, and the number of source rows is the
estimate of its catalogue. A source that does not answer is reported; the rest of the forecast still
holds. `predict` is pure. Rejected: a trial in Spark, which costs a refresh.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from driftline import wire_pb2 as pb
from driftline.errors import DatabaseUnavailable, SourceUnreachable, WarehouseUnavailable
from driftline.wire.negotiation import CHUNKS

from warehouse_agent.change_models import processes
from warehouse_agent.change_models.fit import fit
from warehouse_agent.change_models.memory import Memory
from warehouse_agent.change_models.week import HOUR_S, HOURS, Week
from warehouse_agent.config import Fragment, Proof, StorageSettings
from warehouse_agent.history import change_memory, line_notes
from warehouse_agent.history.forecast_inputs import (
    Situation,
    forecasts,
    foretold_partition,
    marker_of,
)
from warehouse_agent.history.notes import Notes
from warehouse_agent.history.refresh_history import RefreshHistory, for_forecast, read
from warehouse_agent.inspection import part_prediction, place_prediction
from warehouse_agent.inspection.part_prediction import PartForecast
from warehouse_agent.inspection.place_prediction import Places, RefreshAmounts
from warehouse_agent.methods.registry import likelihoods, refreshes, weigh_groups
from warehouse_agent.planning import change_forecast, choice, request_cost
from warehouse_agent.planning.candidates import Candidate, groups_may_pay
from warehouse_agent.planning.choice import NAMES, Method
from warehouse_agent.planning.marker_state import MarkerAudit, MarkerState
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.plan_inputs import PlanInputs, Unstaged
from warehouse_agent.planning.request_cost import RequestForecast
from warehouse_agent.refresh import auxiliary_table, derivation, prepare, schema_change
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.report import JSON_SCHEMA, counted
from warehouse_agent.storage import formats, row_security
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.staged_files import staged_of_load
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks.staging import ExchangeIdentity, Staging
from warehouse_agent.tasks.steps import Steps
from warehouse_agent.timetable import decision
from warehouse_agent.timetable.decision import Circumstances
from warehouse_agent.timetable.timing import Timing
from warehouse_agent.transport.channel import SourceChannel, allowances
from warehouse_agent.transport.preflight import reach

MOST_H = 52.0 * HOURS  # a forecast of rows for later than a year says nothing
PROOF_OF_PART = f'proof = "{Proof.PART.value}"'


@dataclass(frozen=True, slots=True)
class ForecastFacts:
    """Facts that a forecast tells beside the prediction, which does not depend on them.

    Attributes:
        staged_bytes: of earlier attempts.
        staged_rows: of earlier attempts at a load, or at a copy that goes on; None: not known.
        staged_listed: a source leaves them out by chunks; None: not known, or neither of the two.
        source_error: why the source could not be asked; None: it was.
        schema_changes: of the relation, each in words, that a refresh refuses.
        requests: of the object store; None: a disk, or a first load.
        situation: out of which the inputs of the prediction are made; None: nobody tells.
    """

    staged_bytes: int = 0
    staged_rows: int | None = None
    staged_listed: bool | None = None
    source_error: str | None = None
    schema_changes: tuple[str, ...] = ()
    requests: RequestForecast | None = None
    situation: Situation | None = None


NOTHING = ForecastFacts()


@dataclass(frozen=True, slots=True)
class MarkerForecast:
    """Forecast of the use of a marker.

    Attributes:
        why: it would not be used; None: it would.
        proof: that a refresh would give.
        audit: the last one; None: there was none.
        audit_age_s, audit_s: seconds since the last one, None: not known; and between two.
    """

    used: bool
    why: str | None
    proof: str
    audit: MarkerAudit | None
    audit_age_s: int | None
    audit_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one refresh. `chosen` is the `what` of a candidate."""

    name: str
    version: int | None
    rows_published: int | None
    rows_expected: int | None
    first_load: bool
    changes_expected: tuple[int, int, int] | None  # low, median, high: an 80 % interval
    change_share: float
    change_share_from: str
    floor_bytes: int | None
    candidates: tuple[Candidate, ...]
    chosen: str
    why: str
    staged_bytes: int
    source_error: str | None
    schema_changes: tuple[str, ...]
    tiles: int | None = None
    tiles_done: int | None = None
    refused: str | None = None
    marker: MarkerForecast | None = None
    rows_forecast: float | None = None  # E|R(f)| at this moment, by Prop. 2; None: no history
    row_hours: float | None = None  # unseen until now, weighted; None: no history, or no timing
    held_back_s: float | None = None  # by the source, of the last refresh; None: there was none
    last_s: float | None = None  # that it took in all
    places_expected: Places | None = None  # of the phases; None: nobody asked
    staged_rows: int | None = None  # of a load, or a copy that goes on; None: not known
    staged_listed: bool | None = None  # the source leaves them out by chunks; None: not known
    requests_expected: RequestForecast | None = None  # None: a disk, or a first load
    part_expected: PartForecast | None = None  # None: all rows may be compared
    schema: int = JSON_SCHEMA


def forecast(store: Store, fragment: Fragment, steps: Steps | None = None) -> Forecast:
    """Ask the store and the source, and predict a refresh; where it runs, if `steps` are given.

    Raises:
        WarehouseUnavailable: the published table cannot be read.
        DriftlineError: the source refuses the relation. A source that cannot be reached, or whose
            database cannot, is no error: see `Forecast.source_error`.
    """
    reply, source_error = _describe(fragment)
    if reply is not None:
        with contextlib.suppress(WarehouseUnavailable):  # the note may be lost
            line_notes.note_limits(store, fragment.source, reply.description)
    history = read(store, fragment.name, for_forecast(datetime.now(UTC)))
    known, beside = know(store, fragment, history, reply)
    known = _with_statistics(known, beside.situation, steps)
    predicted = predict(known, replace(beside, source_error=source_error))
    now, zone = datetime.now(UTC), fragment.time_zone
    memory = change_memory.remembered(store, fragment.name, zone, history)
    held = history.held_back_s or (None, None)
    at = beside.situation
    return replace(
        predicted,
        rows_forecast=rows_forecast(memory, zone, predicted.rows_published, now),
        row_hours=row_hours(memory, fragment.timing, now),
        held_back_s=held[0],
        last_s=held[1],
        places_expected=None if steps is None else _places(steps, known, predicted),
        part_expected=None if at is None else part_prediction.part_expected(known, at, steps),
    )


def _with_statistics(known: PlanInputs, at: Situation | None, steps: Steps | None) -> PlanInputs:
    """Return the inputs with the likelihoods of rows, where a refresh reads these as well."""
    changes, expected = forecasts(known)
    if steps is None or at is None or at.base is None or not groups_may_pay(known, expected):
        return known
    outlook = prepare.outlook_of(at.base, changes, prepare.stamp_of(at))
    likely = likelihoods(steps, at.base.sound, at.base.layout, outlook)
    return weigh_groups(known, expected, likely)


def _places(steps: Steps, known: PlanInputs, predicted: Forecast) -> Places:
    chosen = next(c for c in predicted.candidates if c.what == predicted.chosen)
    changed = round(predicted.change_share * (known.rows or 0))
    return place_prediction.places(steps, RefreshAmounts.of(known, chosen, changed))


def rows_forecast(memory: Memory, zone: str, rows: int | None, now: datetime) -> float | None:
    """Return E|R(f)|, the rows that a relation is expected to have now (Prop. 2), from the last
    refresh and the insertions and deletions since, at the rates of its history; None: it has none,
    or is too short to say.

    Args:
        zone: the time zone of the source.
        rows: of the published version.
    """
    model = None if rows is None or memory.last is None else fit(memory, zone)
    if rows is None or memory.last is None or model is None:
        return None
    hours = max(now.timestamp() - memory.last, 0.0) / HOUR_S
    if not model.knows(hours):
        return None
    deaths = np.full(HOURS, model.deleted_per_row)
    begin = float(Week(model.zone).hour_of(memory.last))
    end = begin + min(hours, MOST_H)
    return processes.cardinality(float(rows), model.inserted, deaths, begin, end)


def row_hours(memory: Memory, timing: Timing | None, now: datetime) -> float | None:
    """Return the weighted row-hours that a refresh is expected to end: those of the changes since
    the last one, by the weights of a timing; None: there is none, or the history is too short."""
    if timing is None:
        return None
    told = decision.unseen(memory, timing, Circumstances(memory.taken), now.timestamp())
    return None if told is None else round(told.row_hours, 1)


def know(
    store: Store,
    fragment: Fragment,
    history: RefreshHistory,
    reply: pb.DescribeReply | None,
) -> tuple[PlanInputs, ForecastFacts]:
    """Collect the inputs of a prediction from the store and the source's reply.

    Raises:
        WarehouseUnavailable: the published table cannot be read, or most of its files are missing.
    """
    base = formats.head(store, fragment.name)
    notes = Notes.read(store, fragment.name)
    if base is not None:
        base = repair.taken_for_lost(store, fragment.name, base, notes.damaged)
    load = staged_of_load(store, fragment.name) if base is None else None
    if base is not None:
        staged = Staging(store, fragment.name).frame_bytes()
    else:
        staged = 0 if load is None else load.bytes
    description = reply.description if reply is not None else None
    described = derivation.recipe_now(reply, fragment, base) if reply is not None else None
    published = base.layout.recipe if base is not None else None
    changes: list[str] = []
    if published and described and published.id != described.id:
        changes = list(schema_change.column_changes(published, described)) or [
            "its fingerprint version"
        ]
    if base is not None and description is not None:
        before = notes.policies(base)
        changes += row_security.changes(before, PolicyDigests.from_message(description))
    history = history.with_newest(base)
    features = () if reply is None else reply.features
    at = Situation(
        fragment=fragment,
        base=base,
        recipe=published or described,
        notes=notes,
        earlier=tuple(history.earlier),
        line=line_notes.line(store, fragment.source, notes.rows_per_s, features),
        now=datetime.now(UTC),
        allowance=allowances(reply).get(fragment.relation) if reply is not None else None,
        marker=_marker_state(fragment, base, notes, reply, staged),
        rows_told=None if description is None else description.rows_expected or None,
        days=tuple(history.days),
    )
    files = base.sound if base is not None else ()
    partition = foretold_partition(notes.quantiles, None if base is None else base.layout, files)
    tiled = auxiliary_table.tiled(store, fragment, base) if at.pass_over else None
    knows_chunks, copy = None if reply is None else CHUNKS in reply.features, None
    if tiled is None and knows_chunks is not False:
        copy = _copy_that_goes_on(store, at, staged)
    known = at.known(files, partition, tiled)
    if copy is not None:
        known = replace(at.known(files, choice.everything()), unstaged=copy)
    goes_on = load or copy
    return known, ForecastFacts(
        staged,
        None if goes_on is None else goes_on.rows,
        None if goes_on is None else knows_chunks,
        schema_changes=tuple(changes),
        requests=None if base is None else _requests(store, base),
        situation=at,
    )


def _copy_that_goes_on(store: Store, at: Situation, staged_bytes: int) -> Unstaged | None:
    """Return what is staged of a copy that was cut and is to go on; None: there is none."""
    base = at.base
    if not staged_bytes or base is None or at.read_at_most is not None:
        return None
    wanted = ExchangeIdentity.of(at.fragment, base.version, base.layout.recipe)
    found = Staging(store, at.fragment.name).staged(wanted, anywhere=True)
    if not found:
        return None
    return prepare.unstaged_of(at, base.layout, base.sound, found, staged_bytes)


def _requests(store: Store, base: Snapshot) -> RequestForecast | None:
    """Return what a refresh asks of the object store; None on a disk."""
    if store.is_local:
        return None
    folders = {f.path.rpartition("/")[0] for f in base.files}
    settings = store.storage or StorageSettings()
    return request_cost.predict(
        base.version,
        len(base.files),
        len(folders),
        settings.price_per_1000_reads,
        settings.price_per_1000_writes,
    )


def _marker_state(
    fragment: Fragment,
    base: Snapshot | None,
    notes: Notes,
    reply: pb.DescribeReply | None,
    staged_bytes: int,
) -> MarkerState | None:
    """Return what is known of a marker; None: all rows are to be proven.

    A source that does not answer is taken to give marks.
    """
    features = None if reply is None else reply.features
    state = marker_of(fragment, base, notes, features=features, staged_bytes=staged_bytes)
    is_named = reply is None or reply.description.HasField("marker")
    if state is None or is_named or not state.is_known:
        return state
    return replace(state, mark=b"", why="the source's DBA names no marker of this relation")


def predict(known: PlanInputs, beside: ForecastFacts = NOTHING) -> Forecast:
    """Price the candidates, choose one and say why."""
    rows, floor = known.rows or 0, None
    changes, expected = forecasts(known)
    if changes is None:
        changed, origin, interval = round(rows * choice.CHANGE_SHARE), "assumed", None
    else:
        changed, count = min(changes.median, rows), len(known.earlier) - 1
        interval = changes.low, changes.median, changes.high
        origin = f"after the last {'refresh' if count == 1 else f'{count} refreshes'}"
        if change_forecast.after_pause(list(known.earlier), rows, known.now, known.days):
            origin = f"after a pause, by the totals of {len(known.days) - 1} days"
    differing = changed if expected is None else min(expected.median, rows)
    candidates, chosen = refreshes(known, expected, max(differing, 1))
    if known.rows is not None and not known.prices.guessed:
        floor = choice.floor_bytes(known.rows, changed, known.prices.row)
    return Forecast(
        name=known.name,
        version=known.version,
        rows_published=known.rows,
        rows_expected=known.rows_expected,
        first_load=known.rows is None,
        changes_expected=interval,
        change_share=changed / known.rows if known.rows else 0.0,
        change_share_from=origin,
        floor_bytes=floor,
        candidates=candidates,
        chosen=chosen,
        why=_why(known, candidates, chosen),
        staged_bytes=beside.staged_bytes,
        requests_expected=beside.requests,
        staged_rows=beside.staged_rows,
        staged_listed=beside.staged_listed,
        source_error=beside.source_error,
        schema_changes=beside.schema_changes,
        tiles=known.scope.tiles,
        tiles_done=known.scope.tiles_done,
        refused=known.refusal.message if known.refusal is not None else None,
        marker=_marker(known, chosen),
    )


def _marker(known: PlanInputs, chosen: str) -> MarkerForecast | None:
    """Return whether a marker would be used, why not, and its last audit; None: it is not asked
    for."""
    state = known.marker
    if state is None:
        return None
    is_used = chosen == NAMES[Method.SINCE]
    why = state.refused(known.now) or "comparing all rows is as cheap"
    proof = Proof.CLAIMED if state.claims else Proof.KEYS
    age_s = state.age_s(known.now)
    return MarkerForecast(
        used=is_used,
        why=None if is_used else why,
        proof=(proof if is_used else Proof.TOTAL).value,
        audit=state.audit,
        audit_age_s=round(age_s) if math.isfinite(age_s) else None,
        audit_s=state.audit_s,
    )


def _describe(fragment: Fragment) -> tuple[pb.DescribeReply | None, str | None]:
    """Return the source's description of the relation, or why it could not be asked."""
    try:
        reach(fragment.source)
        with SourceChannel(fragment.source) as link:
            return link.describe(fragment.relation, fragment.beside), None
    except (SourceUnreachable, DatabaseUnavailable) as error:
        return None, error.message


def _why(known: PlanInputs, candidates: tuple[Candidate, ...], chosen: str) -> str:
    if known.rows is None:
        return "there is nothing to compare yet"
    if known.read_at_most and known.rows:
        said = known.allowance
        if said is None or said.may_scan(known.now):
            return f"read_at_most = {known.read_at_most}"
        return f"the source allows {said.describe(known.now)} ({PROOF_OF_PART})"
    if known.by_key and known.in_shards and known.allowance is not None:
        return f"the source allows {known.allowance.describe(known.now)}, enough for all rows"
    if known.tiled is not None:
        return "incremental"
    if known.forced is not None:
        return f'method = "{known.forced.value}"'
    sized = {c.what: c for c in candidates[1:] if c.bytes is not None}
    # Without statistics of the rows, groups are used only on request.
    no_rivals = {chosen, *([] if known.likely else [NAMES[Method.GROUP]])}
    others = [c for what, c in sized.items() if what not in no_rivals]
    line = known.line
    if chosen not in sized or not others:
        return ""
    if line.objective is Objective.BYTES:
        best = min(others, key=lambda c: c.bytes or 0)
        less = (best.bytes or 0) - (sized[chosen].bytes or 0)
        if less < 0:
            return _despite(sized[chosen], best)
        return f'{counted(less, "byte")} fewer than {best.what} (objective = "bytes")'
    best = min(others, key=lambda c: c.exchange_seconds or 0.0)
    less_s = (best.exchange_seconds or 0.0) - (sized[chosen].exchange_seconds or 0.0)
    speed = f"{line.rtt_s * 1000:,.0f} ms and {line.bytes_per_s * 8e-6:,.1f} Mbit/s"
    if less_s < 0:
        return _despite(sized[chosen], best)
    return f"{less_s:,.1f} s less than {best.what} over {speed}"


def _despite(chosen: Candidate, best: Candidate) -> str:
    """Return the reason why a candidate that seems cheaper is not chosen."""
    if chosen.what == NAMES[Method.SKETCH] and chosen.round_trips == 1:
        return f"the initial sketch is expected to suffice, although {best.what} would take less"
    is_at_once = chosen.what == NAMES[Method.FULL] and chosen.round_trips == 1
    if is_at_once or chosen.what == NAMES[Method.GROUP]:
        return f"{best.what} would take more in the mean over the changes that may be found"
    return f"{best.what} is rejected: its worst case exceeds a full copy"

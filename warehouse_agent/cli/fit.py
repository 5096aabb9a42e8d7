"""`fit`: print and draw when a fragment's relation changes, and what its refreshes cannot tell."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from driftline.arrays import Bools
from driftline.errors import UsageError
from driftline.settings.hours import DAYS

from warehouse_agent.change_models.dependencies import Multiplicity
from warehouse_agent.change_models.event_times import EVENTS_MIN
from warehouse_agent.change_models.fit import Model
from warehouse_agent.change_models.fitness import Fitness
from warehouse_agent.cli.fit_plot import svg
from warehouse_agent.config import Fragment, WarehouseConfig, select
from warehouse_agent.config.settings import EventKind
from warehouse_agent.inspection.change_fit import FITNESS_MIN, ChangeFit, fitted
from warehouse_agent.report import counted
from warehouse_agent.scheduler.claimed_times import ClaimedTimesFit
from warehouse_agent.scheduler.parent_deletions import Parents

DOUBTFUL = 0.05  # p-value
DAY_H = 24
BIAS = {
    EventKind.CREATION: "a creation time: deleted rows do not show, so older rates are too low",
    EventKind.UPDATE: "an update time: of each row its last change alone shows",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """Hours of the week with one rate, in changed rows per hour, and its 95 % interval."""

    hours: str
    rate: float
    low: float
    high: float


def fit_each(config: WarehouseConfig, name: str, *, as_json: bool, plot: Path | None) -> None:
    """Print the models of the fragments that a name or a glob means; draw that of one.

    Args:
        plot: the file of the picture; None: none.

    Raises:
        UsageError: no fragment matches, or several do and a picture is wanted; or it cannot be
            written.
        WarehouseUnavailable, ConfigurationError, DriftlineError: as `change_fit.fitted`.
    """
    chosen = select(config, [name], False)
    if plot is not None and len(chosen) > 1:
        raise UsageError(
            f"--plot draws one table, and {name!r} matches {len(chosen)}.",
            remedy="Name one of them.",
        )
    for fragment in chosen:
        _print(config, fragment, as_json=as_json, plot=plot)


def _print(
    config: WarehouseConfig, fragment: Fragment, *, as_json: bool, plot: Path | None
) -> None:
    """Print the model of a fragment, and draw it."""
    found = fitted(config, fragment)
    if found is None:
        why = "no interval between two complete refreshes is known yet"
        body = json.dumps({"name": fragment.name, "model": None, "why": why})
        print(body if as_json else f"{fragment.name}: {why}")
        return
    print(json.dumps(body_of(found)) if as_json else "\n".join(text_of(found)))
    if plot is not None:
        _write(plot, svg(found.name, found.model, found.uniform(), _verdict(found.judged)))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"The picture cannot be written to {file}: {error.strerror}.",
            remedy="Name a file in a folder that exists.",
        ) from error


def _verdict(judged: Fitness | None) -> str:
    if judged is None:
        return f"not known from fewer than {FITNESS_MIN} intervals"
    verdict = "doubtful" if judged.p_value <= DOUBTFUL else "not contradicted"
    return f"{verdict} (p = {judged.p_value:.2f})"


def segments(model: Model) -> list[Segment]:
    """Return the segments of a model, in the order of its rates."""
    low, high = model.bounds()
    return [
        Segment(spans(model.segments == k), float(model.rates[k]), float(low[k]), float(high[k]))
        for k in range(len(model.rates))
    ]


def spans(chosen: Bools) -> str:
    """Return hours of the week in words: `Mon-Fri 09:00-18:00, Sun`.

    Args:
        chosen: of each hour of the week, [168].
    """
    if chosen.all():
        return "all hours"
    days = chosen.reshape(7, 24)
    parts = []
    for _, run in groupby(range(7), key=lambda day: days[day].tobytes()):
        group = list(run)
        if text := _hours(days[group[0]]):
            ends = DAYS[group[0]] if len(group) == 1 else f"{DAYS[group[0]]}-{DAYS[group[-1]]}"
            parts.append(f"{ends} {text}".strip() if text != "00:00-24:00" else ends)
    return ", ".join(parts)


def _hours(day: Bools) -> str:
    """Return the hours of one day, [24]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], day.astype(np.int8), [0]])))
    return " ".join(f"{a:02}:00-{b:02}:00" for a, b in edges.reshape(-1, 2))


def body_of(found: ChangeFit) -> dict[str, object]:
    """Return a fit as JSON; rates are changed rows per hour."""
    model, judged, times = found.model, found.judged, found.times
    body = {
        "name": found.name,
        "model": model.structure,
        "time_zone": model.zone,
        "intervals": model.intervals,
        "intervals_dropped": found.memory.dropped,
        "rows_per_hour": model.mean,
        "segments": [
            {"hours": s.hours, "rows_per_hour": s.rate, "low": s.low, "high": s.high}
            for s in segments(model)
        ],
        "rows_per_event": model.batch,
        "dispersion": model.dispersion,
        "inserted_updated_deleted": model.shares,
        "updated_per_row_and_hour": model.updated_per_row,
        "deleted_per_row_and_hour": model.deleted_per_row,
        "not_known": model.untold,
        "p_value": None if judged is None else judged.p_value,
    }
    return body | ({} if times is None else _claims_body(times)) | _parents_body(found.parents)


def text_of(found: ChangeFit) -> list[str]:
    """Return a fit as lines for people."""
    model, memory = found.model, found.memory
    is_claimed = found.times is not None and found.times.found is not None
    kinds = " / ".join(f"{share:.0%}" for share in model.shares)
    seen = counted(model.intervals, "claimed event" if is_claimed else "interval")
    lines = [f"{found.name}: {model.mean:.3g} changed rows an hour, from {seen}"]
    lines.append(f"  model: {model.structure}, in {model.zone}")
    lines += [
        f"  {s.hours}: {s.rate:.3g} an hour (95 %: {s.low:.3g} to {s.high:.3g})"
        for s in segments(model)
    ]
    lines.append(
        f"  an event changes {model.batch:.1f} rows; inserted / updated / deleted: {kinds}; "
        f"variance over mean of a count: {model.dispersion:.1f}"
    )
    lines += [f"  {text}" for text in model.untold]
    if memory.dropped:
        lines.append(f"  dropped, because the clock of the source was set: {memory.dropped}")
    if not is_claimed:
        lines.append(f"  goodness of fit: {_verdict(found.judged)}")
    rows = memory.recent[-1].rows if memory.recent else 0.0
    more = [] if found.times is None else _claims_text(found.times)
    more += _parents_text(found.parents, rows)
    return [*lines, *(f"  {line}" for line in more)]


def _claims_body(times: ClaimedTimesFit) -> dict[str, object]:
    """Return the fields of claimed times."""
    event_model = times.found
    return {
        "event_time": times.of.column,
        "event_kind": times.of.kind.value,
        "event_bias": BIAS[times.of.kind],
        "events": times.events,
        "event_times_in_future": times.future,
        "event_times_missing": times.without,
        "event_times_p_value": None if event_model is None else event_model.times.p_value,
        "event_runs_p_value": None
        if event_model is None or event_model.gaps is None
        else event_model.gaps.p_value,
    }


def _claims_text(times: ClaimedTimesFit) -> list[str]:
    """Return lines about claimed times."""
    lines = [f"times of {times.of.column}, as the source claims them: {BIAS[times.of.kind]}"]
    if times.future:
        lines.append(f"{counted(times.future, 'time')} after the snapshot, not counted")
    if times.without:
        lines.append(f"{counted(times.without, 'row')} without a time, not counted")
    if times.found is None:
        lines.append(f"{counted(times.events, 'event')}: a model needs {EVENTS_MIN}")
        return lines
    lines.append(f"goodness of fit of the times (Lemma 6): {_verdict(times.found.times)}")
    if times.found.gaps is not None:
        lines.append(f"independence of the sizes (runs): {_verdict(times.found.gaps)}")
    return lines


def _parents_body(above: Parents) -> dict[str, object]:
    """Return the fields of deletions that parents cause."""
    return {
        "parents": [
            {
                "relation": name,
                "rows_each": [each.least, each.most],
                "deleted_per_row_and_hour": above.own.get(name),
            }
            for name, each in above.each.items()
        ],
        "deleted_with_parents_per_row_and_hour": None if above.why else above.rate,
        "deleted_alone_per_row_and_hour": None if above.why else above.alone,
        "parents_not_known": above.why or None,
    }


def _parents_text(above: Parents, rows: float) -> list[str]:
    """Return lines about deletions that parents cause.

    Args:
        rows: of the fragment.
    """
    if above.why:
        return [f"foreign keys are not known: {above.why}"]
    if not above.each:
        return []
    named = ", ".join(f"{name} ({_each(one)})" for name, one in above.each.items())
    low, high = (rows * -math.expm1(-rate * DAY_H) for rate in above.rate)
    expected = f"{low:,.1f}" if above.rate[0] == above.rate[1] else f"{low:,.1f} to {high:,.1f}"
    alone = rows * -math.expm1(-above.alone * DAY_H)
    lines = [
        f"rows are deleted with those that they reference: {named}",
        (
            f"of {rows:,.0f} rows {expected} a day are expected to be deleted so, "
            f"and {alone:,.1f} by themselves"
        ),
    ]
    if unknown := [name for name in above.each if name not in above.own]:
        lines.append(
            f"how often rows of {', '.join(unknown)} are deleted is not known: "
            "no table with a history keeps them"
        )
    if above.cyclic:
        lines.append(f"foreign keys form a cycle, which is cut: {', '.join(above.cyclic)}")
    return lines


def _each(one: Multiplicity) -> str:
    return f"{one.least} each" if one.is_fixed else f"{one.least} to {one.most} each"

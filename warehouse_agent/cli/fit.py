"""`fit`: when a fragment's relation changes, as its refreshes tell, and what they cannot tell."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from driftline.arrays import Bools
from driftline.errors import UsageError
from driftline.settings.hours import DAYS

from warehouse_agent.change_models.fit import Model, fit
from warehouse_agent.change_models.fitness import Fitness, of_counts, of_model
from warehouse_agent.change_models.memory import Memory
from warehouse_agent.cli.fit_plot import svg
from warehouse_agent.config import Fragment, WarehouseConfig, select
from warehouse_agent.history import change_memory
from warehouse_agent.report import counted
from warehouse_agent.scheduler.claimed_times import DOUBTFUL, claimed, event_time
from warehouse_agent.scheduler.parent_deletions import parents
from warehouse_agent.storage.store import Store

FITNESS_MIN = 10  # intervals


@dataclass(frozen=True, slots=True)
class Segment:
    """Hours of the week with one rate, in changed rows per hour, and its 95 % interval."""

    hours: str
    rate: float
    low: float
    high: float


def fit_each(config: WarehouseConfig, name: str, *, as_json: bool, plot: Path | None) -> None:
    """Print the models of the fragments that a name or a glob means; arguments as of `fitted`.

    Raises:
        UsageError: no fragment matches, or several do and a picture is wanted.
    """
    chosen = select(config, [name], False)
    if plot is not None and len(chosen) > 1:
        raise UsageError(
            f"--plot draws one fragment, and {name!r} matches {len(chosen)}.",
            remedy="Name one of them.",
        )
    for fragment in chosen:
        fitted(config, fragment, as_json=as_json, plot=plot)


def fitted(
    config: WarehouseConfig, fragment: Fragment, *, as_json: bool, plot: Path | None = None
) -> None:
    """Print the model of a fragment, and draw it.

    Claimed times of events are fitted instead of the counts of intervals, where there are enough.

    Args:
        plot: the file of the picture; None: none.

    Raises:
        WarehouseUnavailable: its history or its table cannot be read.
        ConfigurationError: its `event_time` is no time.
        UsageError: the picture cannot be written.
        DriftlineError: its source, which is asked for foreign keys, refuses the relation.
    """
    store = Store.of(config)
    memory = change_memory.remembered(store, fragment.name, fragment.time_zone)
    times = None
    if (of := event_time(store, fragment)) is not None and memory.last is not None:
        times = claimed(store, fragment, of, memory.last)
    by_counts = fit(memory, fragment.time_zone)
    by_times = None if times is None else times.found
    model = by_counts if by_times is None else by_times.model
    if model is None:
        why = "no interval between two complete refreshes is known yet"
        body = json.dumps({"name": fragment.name, "model": None, "why": why})
        print(body if as_json else f"{fragment.name}: {why}")
        return
    judged = None
    if by_times is not None:
        judged = by_times.times
    elif len(memory.recent) >= FITNESS_MIN:
        judged = of_counts(model, memory)
    if by_times is not None and by_counts is not None:  # kinds of change are those of refreshes
        model = replace(
            model,
            shares=by_counts.shares,
            updated_per_row=by_counts.updated_per_row,
            deleted_per_row=by_counts.deleted_per_row,
        )
    above = parents(config, store, fragment)
    if as_json:
        claims = {} if times is None else times.to_json()
        body_ = body_of(fragment.name, model, memory, judged) | claims | above.to_json()
        print(json.dumps(body_))
    else:
        lines = text_of(fragment.name, model, memory, judged, is_claimed=by_times is not None)
        rows = memory.recent[-1].rows if memory.recent else 0.0
        more = [*(() if times is None else times.text()), *above.text(rows)]
        print("\n".join([*lines, *(f"  {line}" for line in more)]))
    if plot is not None:
        uniform = of_model(model, memory) if by_times is None else by_times.uniform
        _write(plot, svg(fragment.name, model, uniform, _verdict(judged)))


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


def body_of(name: str, model: Model, memory: Memory, judged: Fitness | None) -> dict[str, object]:
    """Return the model as JSON; rates are changed rows per hour."""
    return {
        "name": name,
        "model": model.structure,
        "time_zone": model.zone,
        "intervals": model.intervals,
        "intervals_dropped": memory.dropped,
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


def text_of(
    name: str, model: Model, memory: Memory, judged: Fitness | None, *, is_claimed: bool = False
) -> list[str]:
    """Return the model as lines for people; `is_claimed`: it is fitted to claimed times."""
    kinds = " / ".join(f"{share:.0%}" for share in model.shares)
    seen = counted(model.intervals, "claimed event" if is_claimed else "interval")
    lines = [f"{name}: {model.mean:.3g} changed rows an hour, from {seen}"]
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
        lines.append(f"  goodness of fit: {_verdict(judged)}")
    return lines

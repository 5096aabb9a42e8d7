"""`fit`: when a fragment's relation changes, as its refreshes tell, and what they cannot tell."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from driftline.arrays import Bools
from driftline.hours import DAYS

from warehouse_agent.cli.schedule.parents import parents
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history import intervals
from warehouse_agent.report import counted
from warehouse_agent.schedule.fit import Model, fit
from warehouse_agent.schedule.fitness import Fitness, of_counts
from warehouse_agent.schedule.memory import Memory
from warehouse_agent.storage.store import Store

FITNESS_MIN = 10  # intervals
DOUBTFUL = 0.05  # p-value


@dataclass(frozen=True, slots=True)
class Segment:
    """Hours of the week with one rate, in changed rows per hour, and its 95 % interval."""

    hours: str
    rate: float
    low: float
    high: float


def fitted(config: WarehouseConfig, fragment: Fragment, *, as_json: bool) -> None:
    """Print the model of a fragment.

    Raises:
        WarehouseUnavailable: its history cannot be read.
        DriftlineError: its source, which is asked for foreign keys, refuses the relation.
    """
    store = Store.of(config)
    memory = intervals.remembered(store, fragment.name, fragment.time_zone)
    model = fit(memory, fragment.time_zone)
    if model is None:
        why = "no interval between two complete refreshes is known yet"
        body = json.dumps({"name": fragment.name, "model": None, "why": why})
        print(body if as_json else f"{fragment.name}: {why}")
        return
    judged = of_counts(model, memory) if len(memory.recent) >= FITNESS_MIN else None
    above = parents(config, store, fragment)
    if as_json:
        print(json.dumps(body_of(fragment.name, model, memory, judged) | above.to_json()))
    else:
        lines = text_of(fragment.name, model, memory, judged)
        lines += [f"  {line}" for line in above.text(memory.recent[-1].rows)]
        print("\n".join(lines))


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
    found = []
    for _, run in groupby(range(7), key=lambda day: days[day].tobytes()):
        group = list(run)
        if text := _hours(days[group[0]]):
            ends = DAYS[group[0]] if len(group) == 1 else f"{DAYS[group[0]]}-{DAYS[group[-1]]}"
            found.append(f"{ends} {text}".strip() if text != "00:00-24:00" else ends)
    return ", ".join(found)


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


def text_of(name: str, model: Model, memory: Memory, judged: Fitness | None) -> list[str]:
    """Return the model as lines for people."""
    kinds = " / ".join(f"{share:.0%}" for share in model.shares)
    seen = counted(model.intervals, "interval")
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
    if judged is None:
        lines.append(f"  goodness of fit: not known from fewer than {FITNESS_MIN} intervals")
    else:
        verdict = "doubtful" if judged.p_value <= DOUBTFUL else "not contradicted"
        lines.append(f"  goodness of fit: {verdict} (p = {judged.p_value:.2f})")
    return lines

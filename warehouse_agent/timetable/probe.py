"""What a source said of changes without a scan (a probe), and when it is worth a refresh.

A probe is a hint about *when*: nothing is published or proven from it, and the longest interval
bounds what a silent one can hide. One that said "unchanged" after a snapshot in which a refresh
found changes is contradicted, and counts as none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from warehouse_agent.change_models.fit import Model


class ProbeAnswer(Enum):
    """Answers of a source to the question whether anything changed since the last refresh."""

    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    CONTRADICTED = "contradicted"
    PUT_OFF = "put off"  # it may be asked again, but not yet
    HEARTBEAT = "heartbeat"  # it says that it changed, each time, and refreshes find nothing


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """An answer.

    `rows`: changed rows, net or not; None: not counted. `why`: of an answer that says nothing.
    `wait_s`: seconds until the source may be asked again, where it put the question off.
    """

    answer: ProbeAnswer = ProbeAnswer.UNKNOWN
    rows: float | None = None
    why: str = ""
    wait_s: float = 0.0

    @property
    def is_known(self) -> bool:
        """Return True if the answer says something."""
        return self.answer in (ProbeAnswer.UNCHANGED, ProbeAnswer.CHANGED)


def pending_enough(price: float, weight: float, model: Model | None) -> float:
    """Return p* = √(2mλ) − b, the number of changed rows that are worth a refresh; at least 1.

    A constant flow of λ rows an hour costs least if it is refreshed at √(2mλ) rows; changes come
    in batches of b, which overshoot. Without a model any change is worth it.

    Args:
        price: m of a refresh, in weighted row-hours.
        weight: mean weight of an hour.
    """
    if model is None or model.mean <= 0:
        return 1.0
    return max(1.0, math.sqrt(2 * price / weight * model.mean) - model.batch)


def pending(probe: ProbeResult, hours: float, model: Model | None) -> float:
    """Return the number of changed rows that wait, `hours` after the last refresh: as counted, or
    as the model expects it where something changed."""
    if probe.answer is not ProbeAnswer.CHANGED:
        return 0.0
    if probe.rows is not None:
        return probe.rows
    if model is None or model.mean <= 0:
        return 1.0
    expected = model.mean * hours
    return max(1.0, expected / -math.expm1(-max(expected / model.batch, 1e-9)))

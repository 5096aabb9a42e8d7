"""Where the steps of a refresh would run, and why, predicted from the published files (`plan`).

No file is opened, so bytes of rows are those of files times what TPC-H's take (`UNPACKED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warehouse_agent.planning.candidates import Candidate
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.step_places import (
    UNPACKED,
    PlacedStep,
    StepKind,
    StepPlace,
    StepWork,
    joining,
)
from warehouse_agent.tasks.proof import SLICES
from warehouse_agent.tasks.steps import DIGEST_BYTES, DIGESTS_FACTOR, Steps

Places = Mapping[str, Mapping[str, Any]]  # by phase, as in a report, with the place


@dataclass(frozen=True, slots=True)
class RefreshAmounts:
    """Amounts that a refresh is expected to read and write: our rows and files, the bytes of all of
    their rows, and of those that are written."""

    rows: int
    files: int
    row_bytes: int
    written_bytes: int

    @classmethod
    def of(cls, known: PlanInputs, chosen: Candidate, changed: int) -> RefreshAmounts:
        """Return those of a refresh that goes as `chosen`, and finds `changed` rows."""
        if known.rows is None:
            size = round((known.rows_expected or 0) * known.prices.copied)
            return cls(0, 0, 0, size)
        rows = sum(rows for rows, _ in known.files)
        size = sum(size for _, size in known.files) * UNPACKED
        came = size * changed // max(rows, 1)
        return cls(rows, len(known.files), size, chosen.bytes_rewritten * UNPACKED + came)


def places(steps: Steps, of: RefreshAmounts) -> Places:
    """Return the place of each phase of a refresh, and why, by the name of the phase."""
    files = max(of.files, 1)
    read = of.written_bytes + of.row_bytes // SLICES
    found = {
        "reduce": StepWork(StepKind.DIGESTS, of.rows * DIGEST_BYTES // DIGESTS_FACTOR, files),
        "apply": StepWork(StepKind.WRITE, of.written_bytes),
        "prove": StepWork(StepKind.READ, read),
    }
    return {phase: shown(steps.placed(work)) for phase, work in found.items() if work.size}


def places_of_view(input_bytes: int) -> Places:
    """Return the same of a view, whose rows Spark joins."""
    return {"view": shown(joining(input_bytes))}


def shown(placed: PlacedStep) -> Mapping[str, Any]:
    """Return a place and why, as JSON."""
    return {"place": placed.place.value, **placed.to_json()}


def text_of(predicted: Places) -> str:
    """Return the same for a person."""
    words = {StepPlace.DRIVER.value: "in the driver's process", StepPlace.SPARK.value: "on Spark"}
    return "; ".join(
        f"{phase} {words[place['place']]} ({place['why']})" for phase, place in predicted.items()
    )

"""A view at versions of its inputs, and in one command: what its maintenance is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warehouse_agent.events import Listener
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks.steps import Phases, Steps
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.query import Query


@dataclass(frozen=True, slots=True)
class ViewAt:
    """A view to be computed from given versions of its inputs.

    Attributes:
        inputs: one for each occurrence, in order.
        base: the newest version of its table; None: it was never published.
    """

    name: str
    query: Query
    inputs: Sequence[PinnedInput]
    base: ViewSnapshot | None


@dataclass(frozen=True, slots=True)
class ViewJob(ViewAt):
    """A view in one command.

    steps: whose log is that of the report (`StepLog.of(report)`).
    """

    store: Store
    steps: Steps
    report: Report
    emit: Listener

    @property
    def input_bytes(self) -> int:
        """Return the size of all files of the inputs."""
        return sum(f.size for one in self.inputs for f in one.files)

    @property
    def phase(self) -> Phases:
        """Return the phases of its maintenance; called with a name, one begins."""
        return Phases(self.report, self.steps.log, self.emit)

"""What is expected of a component, to time its view phases: from histories and from its views."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from warehouse_agent.components import phase_history
from warehouse_agent.components.phase_history import RefreshHabit
from warehouse_agent.components.phase_schedule import ExpectedChanges, PhaseLimits, is_due_within
from warehouse_agent.components.staleness import PhaseCost
from warehouse_agent.config import Fragment, Require, View
from warehouse_agent.history.refresh_history import RefreshHistory, read
from warehouse_agent.refresh.services import CommandServices
from warehouse_agent.views.component_graph import Component


@dataclass
class PhaseForecast:
    """The timing of a component's view phases in one command; read when it is first needed.

    Attributes:
        fragments: of the component, which the command refreshes.
        views: of the component, without those left out.
    """

    services: CommandServices
    component: Component
    fragments: Sequence[Fragment]
    views: Sequence[View]
    _began: float = field(default_factory=time.monotonic, init=False)
    _cost: PhaseCost | None = field(default=None, init=False)
    _habits: dict[str, RefreshHabit] | None = field(default=None, init=False)

    @property
    def limits(self) -> PhaseLimits:
        """Return what the views allow: the least of each."""
        lags = [view.max_lag_s for view in self.views]
        chunks = [view.chunk_rows for view in self.views if view.chunk_rows is not None]
        return PhaseLimits(min(lags, default=0), min(chunks, default=None))

    @property
    def source_of(self) -> dict[str, str]:
        """Return the source of each fragment."""
        return {fragment.name: fragment.source.name for fragment in self.fragments}

    @property
    def fuzzy(self) -> frozenset[str]:
        """Return the sources all of whose fragments say that they need no snapshot."""
        return fuzzy_sources(self.fragments)

    @property
    def has_boundaries(self) -> bool:
        """Return True if a phase may come before all fragments are proven."""
        return len({*self.source_of.values()}) > 1 or bool(self.fuzzy)

    def between(self) -> ExpectedChanges:
        """Return the changes that come within `max_lag`; the next boundary is the next refresh."""
        habits, lag_s = self._known(), self.limits.max_lag_s
        ours = [habits[fragment.name] for fragment in self.fragments]
        return ExpectedChanges(
            base_s=lag_s,
            rows=lag_s * sum(habit.rows_per_s for habit in habits.values()),
            cost=self._cost,
            next_s=min((h.interval_s for h in ours if h.interval_s is not None), default=None),
            next_rows=sum(habit.rows for habit in ours),
        )

    def is_due_within(self, rows: int, waiting: Collection[str], spent_s: float) -> bool:
        """Return True if a phase over `rows` is due while fragments are still compared.

        Args:
            waiting: names of those fragments.
            spent_s: seconds of the command's earlier view phases.
        """
        habits = self._known()
        left_rows = sum(habits[name].rows for name in waiting)
        base_s = self._base_s(habits)
        past_s = time.monotonic() - self._began - spent_s
        sources = {self.source_of[name] for name in waiting}
        # What is late already is expected to be as late again.
        left_s = abs(base_s - past_s)
        stream = ExpectedChanges(
            base_s=base_s,
            rows=sum(habits[fragment.name].rows for fragment in self.fragments),
            cost=self._cost,
            boundaries_max=len({*self.source_of.values()}) + len(self.fuzzy),
            next_rows=left_rows / max(len(sources), 1),
        )
        if self.limits.max_lag_s:
            stream = self.between()
        return is_due_within(rows, self.limits, stream, left_s=left_s, left_rows=left_rows)

    def _base_s(self, habits: dict[str, RefreshHabit]) -> float:
        """Return the seconds until all fragments are proven: sources are served side by side."""
        takes_s: dict[str, float] = defaultdict(float)
        for fragment in self.fragments:
            takes_s[fragment.source.name] += habits[fragment.name].takes_s
        places = self.services.config.sources_at_once
        return max([*takes_s.values(), sum(takes_s.values()) / places])

    def _known(self) -> dict[str, RefreshHabit]:
        """Read the habits of the component's fragments, and the cost of its phases, once."""
        if self._habits is None:
            store, now = self.services.store, datetime.now(UTC)
            views = (read(store, v, phase_history.last_phases()) for v in self.component.views)
            self._cost = phase_history.cost(views)
            self._habits = {
                name: phase_history.habit(self._history(name), now)
                for name in self.component.fragments
            }
        return self._habits

    def _history(self, name: str) -> RefreshHistory:
        known = self.services.histories.known(name)
        return known or read(self.services.store, name, phase_history.last_refreshes())


def fuzzy_sources(fragments: Sequence[Fragment]) -> frozenset[str]:
    """Return the sources all of whose fragments, among these, have `require = "fuzzy"`."""
    exact = {f.source.name for f in fragments if f.require is not Require.FUZZY}
    return frozenset({f.source.name for f in fragments} - exact)

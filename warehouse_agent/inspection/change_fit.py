"""When the relation of a fragment changes: the model that fits its refreshes or claimed times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from driftline.arrays import Floats

from warehouse_agent.change_models.fit import Model, fit
from warehouse_agent.change_models.fitness import Fitness, of_counts, of_model
from warehouse_agent.change_models.memory import Memory
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history import change_memory
from warehouse_agent.history.notes import Notes
from warehouse_agent.scheduler.claimed_times import ClaimedTimesFit, claimed, event_time
from warehouse_agent.scheduler.parent_deletions import Parents, parents
from warehouse_agent.storage.store import Store

FITNESS_MIN = 10  # intervals


@dataclass(frozen=True, slots=True)
class ChangeFit:
    """A model of the changes of a fragment's relation, and what is known beside it.

    Attributes:
        memory: the intervals between its refreshes.
        judged: the goodness of fit; None: there are fewer than FITNESS_MIN intervals.
        times: the fit of claimed times; None: no column claims any. A model of it, if there are
            enough, is `model`.
        parents: deletions that its parents cause.
    """

    name: str
    model: Model
    memory: Memory
    judged: Fitness | None
    times: ClaimedTimesFit | None
    parents: Parents

    def uniform(self) -> Floats:
        """Return values that are uniform on 0..1 if the model is right, [n]."""
        if self.times is not None and self.times.found is not None:
            return self.times.found.uniform
        return of_model(self.model, self.memory)


def fitted(config: WarehouseConfig, fragment: Fragment) -> ChangeFit | None:
    """Fit a model to the changes of a fragment; None: no interval between two complete refreshes
    is known.

    Claimed times of events are fitted instead of the counts of intervals, where there are enough.

    Raises:
        WarehouseUnavailable: its history or its table cannot be read.
        ConfigurationError: its `event_time` is no time.
        DriftlineError: its source, which is asked for foreign keys, refuses the relation.
    """
    store = Store.of(config)
    memory = change_memory.remembered(store, fragment.name, fragment.time_zone)
    times, notes = None, Notes.read(store, fragment.name)
    if (of := event_time(store, fragment, notes)) is not None and memory.last is not None:
        times = claimed(store, fragment, of, memory.last)
    by_counts = fit(memory, fragment.time_zone)
    by_times = None if times is None else times.found
    model = by_counts if by_times is None else by_times.model
    if model is None:
        return None
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
    return ChangeFit(fragment.name, model, memory, judged, times, above)

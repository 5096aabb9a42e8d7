"""Deletions that a fragment's parents cause: its source says which they are, history how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftline.errors import DatabaseUnavailable, SourceUnreachable
from driftline.relations.references import OnDelete

from warehouse_agent.change_models.dependencies import (
    RELATIONS_MAX,
    CascadingKey,
    Multiplicity,
    cycles,
    multiplicities,
    own_deaths,
    with_parents,
)
from warehouse_agent.change_models.fit import rates_per_row
from warehouse_agent.config import Fragment, WarehouseConfig
from warehouse_agent.history import change_memory
from warehouse_agent.storage.store import Store

if TYPE_CHECKING:
    from warehouse_agent.transport.channel import SourceChannel


@dataclass(frozen=True, slots=True)
class Parents:
    """Relations on which a fragment's rows depend, and deletions that they cause.

    Attributes:
        each: rows of each parent that a row depends on, by the name of the relation.
        own: deletions per row and hour of each parent itself; absent: no history tells.
        rate: bounds of the deletions per row and hour that all parents cause.
        alone: deletions per row and hour that no parent causes.
        cyclic: relations that depend on themselves, by which no deletion is followed twice.
        why: nothing is known, and why; empty: the source was asked.
    """

    each: Mapping[str, Multiplicity]
    own: Mapping[str, float]
    rate: tuple[float, float] = (0.0, 0.0)
    alone: float = 0.0
    cyclic: tuple[str, ...] = ()
    why: str = ""


def parents(config: WarehouseConfig, store: Store, fragment: Fragment) -> Parents:
    """Ask the source for foreign keys, and combine them with what refreshes found.

    Raises:
        WarehouseUnavailable: a history cannot be read.
        DriftlineError: the source refuses the relation.
    """
    from warehouse_agent.transport.channel import SourceChannel
    from warehouse_agent.transport.preflight import reach  # gRPC, where a source is asked

    try:
        reach(fragment.source)
        with SourceChannel(fragment.source) as link:
            graph = _graph(link, fragment.relation)
    except (SourceUnreachable, DatabaseUnavailable) as error:
        return Parents({}, {}, why=error.message)
    if graph is None:
        return Parents({}, {}, why="its source is older than this question")
    observed = {}
    for other in config.fragments.values():
        if other.source.name == fragment.source.name and other.relation in graph:
            memory = change_memory.remembered(store, other.name, other.time_zone)
            if memory.recent:
                observed[other.relation] = rates_per_row(memory.recent)[1]
    own = own_deaths(graph, observed)
    return Parents(
        each=multiplicities(graph, fragment.relation),
        own={name: own[name] for name in observed if name != fragment.relation},
        rate=with_parents(graph, fragment.relation, own),
        alone=own.get(fragment.relation, 0.0),
        cyclic=cycles(graph),
    )


def _graph(link: SourceChannel, relation: str) -> dict[str, tuple[CascadingKey, ...]] | None:
    """Return the relations that one depends on, itself among them; None: the source tells none."""
    from driftline.relations.reference_messages import FEATURE, from_description

    graph: dict[str, tuple[CascadingKey, ...]] = {}
    waiting = [relation]
    while waiting and len(graph) < RELATIONS_MAX:
        name = waiting.pop()
        reply = link.describe(name)
        if FEATURE not in reply.features:
            return None
        nullable = {column.name for column in reply.description.columns if column.nullable}
        cascades = [
            one for one in from_description(reply.description) if one.on_delete is OnDelete.CASCADE
        ]
        graph[name] = tuple(
            CascadingKey(one.relation, not nullable.isdisjoint(one.columns)) for one in cascades
        )
        waiting += [e.parent for e in graph[name] if e.parent not in {*graph, *waiting}]
    return graph

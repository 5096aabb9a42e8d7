"""The inputs of views: what each table of a query means, and the relations kept for views.

A table of two parts is `source.relation`: the fragment that somebody configured for it, or else a
kept fragment, whose table lies below `_driftline/kept`. A table of one part is the name of a
fragment or of another view. A view alone cannot be compared with its sources: it has only rows that
joined, so each refresh would ship all others again (Lu, Liu and Hyland keep the view alone). So
every relation that a view reads is a fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError
from driftline.limits import NAME_BYTES_MAX
from driftline.settings.declarations import nearest

from warehouse_agent import config as configure
from warehouse_agent.config import Fragment, View, WarehouseConfig, is_fragment_name
from warehouse_agent.views import component_graph

if TYPE_CHECKING:
    from warehouse_agent.decomposition.view_needs import OccurrenceNeed
    from warehouse_agent.views.conditions import Site
    from warehouse_agent.views.query import Query


def load(file: Path | str) -> WarehouseConfig:
    """Read warehouse.toml with its views; add a kept fragment for each relation without one.

    Raises:
        ConfigurationError: as `config.load`; a query that is refused; an unknown or ambiguous
            table; views in a circle; a name that two things have.
    """
    config = configure.load(file)
    if not config.views:
        return config
    fragments, views = dict(config.fragments), dict[str, View]()
    for view in config.views.values():
        where = f"{config.file.name}: views.{view.name}.query"
        names, query = [], query_of(view, where)
        meant = [_meant(one.reference, config, where, view.name) for one in query.occurrences]
        sites = _sites(meant) if view.site_joins else ()
        for number, one in enumerate(meant):
            if isinstance(one, Fragment):
                known = fragments.get(one.name, one)
                if not known.is_kept:  # of another relation, and called like this one
                    raise _twin(config, one.name, known.name)
                wishes = (*known.wishes, _wish_of(view, query, number, sites))
                fragments[one.name] = replace(known, wishes=wishes)
                names.append(one.name)
            else:
                names.append(one)
        views[view.name] = replace(view, inputs=tuple(names))
    _refuse_twins(config, fragments)
    component_graph.in_order(inputs_of(views))
    return replace(config, fragments=MappingProxyType(fragments), views=MappingProxyType(views))


def query_of(view: View, where: str = "") -> Query:
    """Return the query of a view, read. Raises ConfigurationError: it is refused.

    Args:
        where: the place in the configuration, for errors.
    """
    from warehouse_agent.views.query import read_query  # sqlglot, where there are views

    return read_query(view.query, where=where or f"views.{view.name}.query")


def _sites(meant: Sequence[str | Fragment]) -> list[Site | None]:
    from warehouse_agent.views.conditions import site_of  # sqlglot, where there are views

    return [site_of(one.name) if isinstance(one, Fragment) else None for one in meant]


def _wish_of(view: View, query: Query, number: int, sites: Sequence[Site | None]) -> OccurrenceNeed:
    from warehouse_agent.views.conditions import wish_of  # sqlglot, where there are views

    return wish_of(view.name, query, number, sites)


def inputs_of(views: Mapping[str, View]) -> dict[str, tuple[str, ...]]:
    """Return the names of the fragments and views that each view reads."""
    return {name: view.inputs for name, view in views.items()}


def _meant(
    reference: tuple[str, ...], config: WarehouseConfig, where: str, view: str
) -> str | Fragment:
    """Return the name of the fragment or view that a table means, or its kept fragment.

    view: whose query names the table.
    """
    written = ".".join(reference)
    if len(reference) == 1:
        if written in config.fragments or written in config.views:
            return written
        known = [name for name in (*config.fragments, *config.views) if name != view]
        raise ConfigurationError(
            f"There is no fragment or view called {written!r}.",
            where=where,
            remedy=nearest(written, known)
            if known
            else "Write source.relation, or the name of a fragment.",
        )
    source, relation = reference
    if source not in config.sources:
        raise ConfigurationError(
            f"There is no [sources.{source}], which the table {written} names.",
            where=where,
            remedy=nearest(source, tuple(config.sources)),
        )
    same = [
        f.name
        for f in config.fragments.values()
        if (f.source.name, f.relation) == (source, relation)
    ]
    if len(same) > 1:
        raise ConfigurationError(
            f"{written} is the relation of several fragments: {', '.join(same)}.",
            where=where,
            remedy="Write the name of the one that is meant.",
        )
    if same:
        return same[0]
    if not is_fragment_name(written) or len(relation.encode()) > NAME_BYTES_MAX:
        raise ConfigurationError(
            f"{written!r} cannot be the name of a folder.",
            where=where,
            remedy=f"Add a [fragments.NAME] for the relation {relation!r}, and write its name.",
        )
    return Fragment(written, config.sources[source], relation, is_kept=True)


def _refuse_twins(config: WarehouseConfig, fragments: Mapping[str, Fragment]) -> None:
    """Refuse a kept fragment that is called like another fragment or a view, but for case."""
    taken = {name.lower(): name for name in (*config.fragments, *config.views)}
    for name in (n for n, f in fragments.items() if f.is_kept):
        twin = taken.setdefault(name.lower(), name)
        if twin != name or name in config.fragments or name in config.views:
            raise _twin(config, name, twin)


def _twin(config: WarehouseConfig, name: str, twin: str) -> ConfigurationError:
    return ConfigurationError(
        f"The relation {name} would be kept under the name of another table, {twin!r}.",
        where=config.file.name,
        remedy=f"Rename {twin!r}, or add a fragment for the relation.",
    )

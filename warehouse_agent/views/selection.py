"""What a refresh works on: fragments, and the views that move with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, UsageError
from driftline.settings.declarations import nearest

from warehouse_agent.config import Fragment, View, WarehouseConfig, named
from warehouse_agent.views import component_graph
from warehouse_agent.views.component_graph import Component
from warehouse_agent.views.inputs import inputs_of

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The result of names on a command line.

    Attributes:
        fragments: to be refreshed: those named, and all below the views that are named.
        views: that move with them, each after the views that it reads, without those left out.
        left_out: views that `--without` names, and the views over them, in these components.
        components: that `fragments` and `views` touch.
        named: views that a name or a glob names: they are brought up to date now.
    """

    fragments: tuple[Fragment, ...]
    views: tuple[View, ...] = ()
    left_out: tuple[View, ...] = ()
    components: tuple[Component, ...] = ()
    named: frozenset[str] = frozenset()


def chosen(config: WarehouseConfig, patterns: Sequence[str], all_: bool) -> list[Fragment | View]:
    """Return the fragments and views that a command line names.

    Raises:
        UsageError: a pattern matches nothing, with the nearest name.
    """
    known = (*config.fragments, *config.views)
    names = named(known, patterns, all_, file=config.file)
    return [config.fragments.get(name) or config.views[name] for name in names]


def view_called(config: WarehouseConfig, name: str) -> View:
    """Return a view by its name. Raises UsageError: there is none, with the nearest name."""
    if (view := config.views.get(name)) is None:
        raise UsageError(
            f"There is no view {name!r} in {config.file.name}.",
            remedy=nearest(name, tuple(config.views)),
        )
    return view


def select(
    config: WarehouseConfig, patterns: Sequence[str], all_: bool, without: Sequence[str] = ()
) -> TableSelection:
    """Return what a refresh of these names works on.

    Raises:
        UsageError: a pattern matches nothing, with the nearest name; `without` names no view.
    """
    for name in without:
        if name not in config.views:
            raise UsageError(
                f"--without {name}: there is no view of this name.",
                remedy=nearest(name, tuple(config.views)),
            )
    asked = [one.name for one in chosen(config, patterns, all_)]
    return _moving(config, asked, without, is_all=all_)


def of_fragments(config: WarehouseConfig, fragments: Sequence[Fragment]) -> TableSelection:
    """Return the selection of a refresh of these fragments, with the views that move with them.

    Raises:
        ConfigurationError: the configuration was read without the queries of its views.
    """
    if not config.views:
        return TableSelection(tuple(fragments))
    if unread := [view.name for view in config.views.values() if not view.inputs]:
        raise ConfigurationError(
            f"The query of the view {unread[0]} was not read.",
            where=config.file.name,
            remedy="Read the file by `warehouse_agent.views.inputs.load`.",
        )
    return _moving(config, [fragment.name for fragment in fragments], (), is_all=False)


def _moving(
    config: WarehouseConfig, asked: Sequence[str], without: Sequence[str], *, is_all: bool
) -> TableSelection:
    inputs = inputs_of(config.views)
    views = [name for name in asked if name in inputs]
    fragments = {*asked, *component_graph.below(views, inputs)} - inputs.keys()
    fragments = _joined(config, fragments)
    moving = component_graph.above(fragments, inputs)
    order = component_graph.in_order(inputs)
    touched = [c for c in component_graph.components(inputs) if fragments & {*c.fragments}]
    near = {view for component in touched for view in component.views}
    left_out = near & {*without, *component_graph.above(without, inputs)}
    return TableSelection(
        tuple(f for name, f in config.fragments.items() if name in fragments),
        tuple(config.views[name] for name in order if name in moving - left_out),
        tuple(config.views[name] for name in order if name in left_out),
        tuple(touched),
        frozenset() if is_all else frozenset(views) - left_out,
    )


def _joined(config: WarehouseConfig, names: Collection[str]) -> set[str]:
    """Return names with those of kept relations whose rows choose each other's: rows are chosen as
    they are now, so all of them are brought to one time."""
    groups = [
        {name, *(f"{fragment.source.name}.{other}" for other in wish.relations)}
        for name, fragment in config.fragments.items()
        for wish in fragment.wishes
    ]
    found, before = {*names}, 0
    while len(found) > before:
        before = len(found)
        found = found.union(*(group for group in groups if group & found))
    return found

"""What a command works on: fragments, and the views that move with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.views.graph import Component


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of names on a command line.

    Attributes:
        fragments: to be refreshed: those named, and all below the views that are named.
        views: that move with them, each after the views that it reads, without those left out.
        left_out: views that `--without` names, and the views over them, if they would have moved.
        components: that `fragments` and `views` touch.
    """

    fragments: tuple[Fragment, ...]
    views: tuple[View, ...]
    left_out: tuple[View, ...]
    components: tuple[Component, ...]


def select(
    config: WarehouseConfig, patterns: Sequence[str], all_: bool, without: Sequence[str] = ()
) -> Selection:
    """Return what a refresh of these names works on.

    Raises:
        UsageError: a pattern matches nothing, with the nearest name; `without` names no view.
    """
    raise NotImplementedError

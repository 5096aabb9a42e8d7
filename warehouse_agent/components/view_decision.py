"""Decide what becomes of the views of a component when its fragments move, without I/O.

Each view is decided after the views that it reads. It is left alone, evaluated, taken as its newest
version is (a command was killed before it flipped), or it stays behind with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from warehouse_agent.config import View
from warehouse_agent.visible_versions.members import Member


@dataclass(frozen=True, slots=True)
class CurrentView:
    """The view is made of these versions already."""


@dataclass(frozen=True, slots=True)
class ViewAdoption:
    """The newest version of the view's table is made of these versions, and no flip names it."""


@dataclass(frozen=True, slots=True)
class ViewEvaluation:
    """The view is to be computed."""


@dataclass(frozen=True, slots=True)
class StaleView:
    """The view cannot follow."""

    why: str


Decision = CurrentView | ViewAdoption | ViewEvaluation | StaleView


@dataclass(frozen=True, slots=True)
class NewestViewVersion:
    """The newest version of a view's table: what it was made of, and if the recipe is the same."""

    version: int
    inputs: Mapping[str, int]
    has_recipe: bool


def torn(chosen_by: Mapping[str, Collection[str]], read_at: Callable[[str], str]) -> str | None:
    """Return why rows of a view's inputs may be missing; None: no input was chosen by another one
    as that was at another time.

    Args:
        chosen_by: by input whose rows were chosen by others: those of them that the view reads.
        read_at: returns the source's time of an input's rows, which tells snapshots apart.
    """
    for name, others in chosen_by.items():
        for other in sorted(others):
            if (there := read_at(other)) != (here := read_at(name)):
                return (
                    f"rows of {name}, of {here}, were chosen by those of {other}, which is of"
                    f" {there}: a refresh of both brings them together"
                )
    return None


def decide(
    view: View,
    versions: Mapping[str, int | None],
    behind: Mapping[str, str],
    member: Member | None,
    head: NewestViewVersion | None,
) -> Decision:
    """Return what becomes of a view.

    Args:
        versions: of its inputs after the command; None: never published.
        behind: its inputs that are views and stay behind.
        member: the view in the newest warehouse version.
        head: of its table.
    """
    for name in view.inputs:
        if name in behind:
            return StaleView(f"its input {name} is stale")
        if versions[name] is None:
            return StaleView(f"its input {name} was never published")
    wanted = {name: versions[name] for name in view.inputs}
    if head is None or not head.has_recipe:
        return ViewEvaluation()
    if (
        member is not None
        and member.stale is None
        and dict(member.inputs) == wanted
        and member.version == head.version
    ):
        return CurrentView()
    is_adopted = dict(head.inputs) == wanted
    return ViewAdoption() if is_adopted else ViewEvaluation()

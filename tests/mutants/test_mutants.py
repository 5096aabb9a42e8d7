"""Every mutant can be made of the code as it is."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests import ROOT
from tests.mutants.mutant import Mutant, mutants

ALL = mutants()
A_ROOM = 5  # at least
# Of the modules of `rights` and `own_values` each is that of its engine.
ENGINES = {path.parent.name for path in (ROOT / "source_agent/engines").glob("*/engine.py")}


def room_of(file: str) -> str | None:
    """Return the room of the tree in which a file lies; None: it is not in a room of an agent."""
    root, *folders, name = file.removesuffix(".py").split("/")
    if root == "proto":
        return "contract"
    if not folders:
        return None
    if folders[0] != "engines":
        return f"{root.partition('_')[0]}_{folders[0]}"
    engines = ENGINES.intersection([*folders[1:], name]) - {"generic"}
    return f"engine_{engines.pop()}" if engines else "engines"


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_it_applies(mutant: Mutant) -> None:
    """Else its words say how to make it again."""
    changed = mutant.changed()
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(mutant.source))
    assert len(mutant.fault) > 20


def test_there_are_five_a_room() -> None:
    assert min(Counter(mutant.room for mutant in ALL).values()) >= A_ROOM
    rooms = {"/".join(path.relative_to(ROOT).parts[:2]) for path in ROOT.glob("*_agent/*/*.py")}
    assert rooms - {"/".join(mutant.file.split("/")[:2]) for mutant in ALL} == set()


def test_each_is_in_the_room_of_its_file() -> None:
    assert {m.id: room_of(m.file) or m.room for m in ALL} == {m.id: m.room for m in ALL}

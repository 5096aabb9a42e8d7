"""Every mutant can be made of the code as it is."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests import ROOT
from tests.mutants.mutant import Mutant, mutants

ALL = mutants()
A_ROOM = 5


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_it_applies(mutant: Mutant) -> None:
    """Else its words say how to make it again."""
    changed = mutant.changed()
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(mutant.source))
    assert len(mutant.fault) > 20


def test_there_are_five_a_room() -> None:
    assert set(Counter(mutant.room for mutant in ALL).values()) == {A_ROOM}
    rooms = {"/".join(path.relative_to(ROOT).parts[:2]) for path in ROOT.glob("*_agent/*/*.py")}
    assert rooms - {"/".join(mutant.file.split("/")[:2]) for mutant in ALL} == set()

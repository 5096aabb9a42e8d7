"""A mutant: one small fault in the product, which some test must notice.

`rooms/ROOM.toml` lists five or more for each room of the product, which is the folder of their
files. A mutant names the file and the function that it changes and the text that it replaces there,
not a line number: it survives moves of the code around it, and where it does not, its words say how
to make it again.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests import ROOT

ROOMS = Path(__file__).parent / "rooms"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class StaleMutantError(Exception):
    """The code that a mutant names is not there any more, or is there twice."""


@dataclass(frozen=True)
class Mutant:
    """`function` is qualified by its classes and outer functions; `old` stands in it once.

    `fault` says what a person could have got wrong.
    """

    room: str
    name: str
    file: str
    function: str
    fault: str
    old: str
    new: str

    @property
    def id(self) -> str:
        return f"{self.room}:{self.name}"

    @cached_property
    def source(self) -> str:
        """The file as it is."""
        return (ROOT / self.file).read_text()

    def changed(self) -> str:
        """Return the file with the fault in it."""
        at = self._offset()
        return self.source[:at] + self.new + self.source[at + len(self.old) :]

    def line_observed(self) -> int:
        """Return the line, from 1, of the innermost statement that the fault begins in."""
        at = self._offset()
        first = self.source.count("\n", 0, at + len(self.old) - len(self.old.lstrip())) + 1
        lines = self.source.splitlines()
        function = self._function()
        inside = [
            one
            for one in ast.walk(function)
            if isinstance(one, ast.stmt)
            and one is not function
            and one.lineno <= first <= (one.end_lineno or one.lineno)
        ]
        if not inside:  # in the signature: whoever calls it
            inside = function.body[-1:]
        chosen = max(inside, key=lambda one: (one.lineno, -(one.end_lineno or 0)))
        # Nothing can stand before an `elif`: whoever reaches it has passed its `if`.
        while lines[chosen.lineno - 1].lstrip().startswith("elif"):
            chosen = next(
                one
                for one in ast.walk(function)
                if isinstance(one, ast.If) and one.orelse == [chosen]
            )
        decorators = getattr(chosen, "decorator_list", ())
        return min([chosen.lineno, *(one.lineno for one in decorators)])

    def _offset(self) -> int:
        function = self._function()
        lines = self.source.splitlines(keepends=True)
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        begin = sum(map(len, lines[: first - 1]))
        end = sum(map(len, lines[: function.end_lineno]))
        if (count := self.source.count(self.old, begin, end)) != 1:
            raise StaleMutantError(
                f"{self.id}: {self.function} of {self.file} holds its text {count} times, not once."
                f" Make the fault again in the code as it is: {self.fault}"
            )
        return self.source.index(self.old, begin, end)

    def _function(self) -> Function:
        place: ast.AST = ast.parse(self.source)
        for name in self.function.split("."):
            found = [
                one
                for one in getattr(place, "body", [])
                if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and one.name == name
            ]
            if not found:
                raise StaleMutantError(f"{self.id}: {self.file} has no {self.function}")
            place = found[-1]
        assert isinstance(place, ast.FunctionDef | ast.AsyncFunctionDef), self.id
        return place


def mutants(rooms: Path = ROOMS) -> list[Mutant]:
    """Return all, by room."""
    found = []
    for file in sorted(rooms.glob("*.toml")):
        for name, fields in tomllib.loads(file.read_text()).items():
            found.append(Mutant(room=file.stem, name=name, **fields))
    return found

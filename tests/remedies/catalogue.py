"""The remedies of the product: their texts, found in its sources.

A text has `…` where a value stands. It is what a call gives as `remedy=`, a class as its
`default_remedy`, what is assigned to an error, and what an own function that makes errors has in
the place of its parameter `remedy`; names, branches and functions are followed within a module, and
a few across. No test here.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tests import ROOT

ROOMS = ("proto/driftline", "source_agent", "warehouse_agent", "deploy/demonstration")
_SUITE = "source_agent/engines/conformance"  # for engines of others
# Tables whose rows end with a remedy, and one such row.
_TABLES = ("_REFUSED", "_CLAUSES", "_ERRORS", "_MEANINGS", "_JOURNALS", "_WAL")
VALUE = "…"
_NAMED = re.compile(rf"remedy|^(?:{'|'.join(_TABLES)})\b", re.M)
_TAKES_ONE = re.compile(r"def (\w+)\([^)]*\bremedy\b")
_FUNCTION = re.compile(r"^ *def (\w+)\(", re.M)


@dataclass(frozen=True, slots=True)
class Remedy:
    """One text, and where the sources have it."""

    text: str
    places: tuple[str, ...] = field(compare=False)


@cache
def remedies() -> dict[str, Remedy]:
    """Return the remedies of the product, by text: 1.5 s, twice that with the cyclic collector."""
    gc.disable()
    try:
        return _found()
    finally:
        gc.enable()


def _found() -> dict[str, Remedy]:
    found: dict[str, list[str]] = {}
    takers = {"error", *(name for one in _modules() for name in _TAKES_ONE.findall(one.text))}
    given = re.compile(rf"\b(?:{'|'.join(sorted(takers))})\(")
    for module in _modules():
        if not (_NAMED.search(module.text) or given.search(module.text)):
            continue
        for text, line in module.remedies():
            if text.strip(f"{VALUE} .:"):
                found.setdefault(text, []).append(f"{module.name}:{line}")
    return {text: Remedy(text, tuple(places)) for text, places in sorted(found.items())}


def matches(text: str, printed: str) -> bool:
    """Return True if what was printed is this remedy, with values in it."""
    pattern = ".*".join(map(re.escape, text.split(VALUE)))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


@cache
def _modules() -> tuple[_Module, ...]:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return tuple(_Module(path) for path in files if _SUITE not in path.as_posix())


@cache
def _owners() -> dict[str, list[_Module]]:
    """Return the modules that have a function of a name."""
    found: dict[str, list[_Module]] = {}
    for module in _modules():
        for name in dict.fromkeys(_FUNCTION.findall(module.text)):
            found.setdefault(name, []).append(module)
    return found


class _Module:
    """A module of the sources, parsed when it is first asked for more than its text."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def _body(self) -> list[ast.stmt]:
        return ast.parse(self.text).body

    @cached_property
    def _nodes(self) -> list[tuple[ast.FunctionDef | None, ast.AST]]:
        """Each node, with the function that it is in."""
        found: list[tuple[ast.FunctionDef | None, ast.AST]] = [(None, node) for node in self._body]
        for function, node in found:  # it grows
            inside = node if isinstance(node, ast.FunctionDef) else function
            found += [(inside, child) for child in ast.iter_child_nodes(node)]
        return found

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for node in self._body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found[name] = value
        return found

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for _, node in self._nodes if isinstance(node, ast.FunctionDef)}

    def remedies(self) -> Iterator[tuple[str, int]]:
        """Yield the text and line of each remedy that this module gives."""
        for _, node in self._nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id="default_remedy")], value=value):
                    yield from ((text, node.lineno) for text in self.texts(value, None))
                case ast.Assign(targets=[ast.Attribute(attr="remedy")], value=value):
                    yield from ((text, node.lineno) for text in self.texts(value, None))
        for name in _TABLES:
            for row in self._rows(name):
                for text in self.texts(row, None):
                    yield re.sub(r"\{\w+\}", VALUE, text), row.lineno
        calls = ((f, node) for f, node in self._nodes if isinstance(node, ast.Call))
        for function, call in calls:
            for value in self._given(call):
                yield from ((text, call.lineno) for text in self.texts(value, function))

    def _given(self, call: ast.Call) -> Iterator[ast.expr]:
        """Yield what a call gives as a remedy: by keyword, or in the place of a parameter."""
        named = [k.value for k in call.keywords if k.arg == "remedy"]
        if named:
            yield from named
            return
        name = str(getattr(call.func, "id", None) or getattr(call.func, "attr", ""))
        if name == "error" and len(call.args) > 2:  # of a table of a file
            yield call.args[2]
        elif (owner := _owner(self, name)) is not None:
            parameters = [a.arg for a in owner.functions[name].args.args if a.arg != "self"]
            if "remedy" in parameters and len(call.args) > parameters.index("remedy"):
                yield call.args[parameters.index("remedy")]

    def texts(
        self, value: ast.expr, function: ast.FunctionDef | None, depth: int = 0
    ) -> Iterator[str]:
        """Yield the texts that an expression can be."""
        if depth > 6:  # a name that is made of itself
            return
        more = depth + 1
        match value:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else VALUE for p in parts)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                for first in self.texts(left, function, more):
                    for second in self.texts(right, function, more):
                        yield first + second
            case ast.IfExp(body=body, orelse=other):
                yield from self.texts(body, function, more)
                yield from self.texts(other, function, more)
            case ast.BoolOp(values=several):
                for one in several:
                    yield from self.texts(one, function, more)
            case ast.Name(id=name):
                yield from self._of_name(name, function, more)
            case ast.Subscript(value=ast.Name(id=name)):
                table = self._table(name)
                for one in table:
                    yield from self.texts(one, function, more)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="format")):
                yield from (
                    re.sub(r"\{\w*\}", VALUE, t) for t in self._of_name(name, function, more)
                )
            case ast.Call(func=ast.Name(id=name)):
                yield from _returned(self, name, more)

    def _of_name(self, name: str, function: ast.FunctionDef | None, depth: int) -> Iterator[str]:
        assigned = [] if function is None else _assigned(function, name)
        for value in assigned:
            yield from self.texts(value, function, depth)
        if not assigned and name in self.constants:
            yield from self.texts(self.constants[name], None, depth)

    def _rows(self, name: str) -> Iterator[ast.expr]:
        """Yield the last part of each row of a table, or of the row that it is."""
        match self.constants.get(name):
            case ast.Dict(values=rows) | ast.Tuple(elts=[ast.Tuple(), *_] as rows):
                yield from (row.elts[-1] for row in rows if isinstance(row, ast.Tuple))
            case ast.Tuple(elts=[*_, last]):
                yield last

    def _table(self, name: str) -> list[ast.expr]:
        match self.constants.get(name):
            case ast.Dict(values=values):
                return values
        return []


def _assigned(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    """Return what a function gives to a name: by assignment, or as the parameter's default."""
    found: list[ast.expr] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=one)], value=value) if one == name:
                found.append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                found += [
                    value
                    for one, value in zip(names, values, strict=True)
                    if isinstance(one, ast.Name) and one.id == name
                ]
            case ast.AugAssign(target=ast.Name(id=one), value=value) if one == name:
                found.append(value)
    arguments = function.args
    pairs = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    found += [default for one, default in pairs if one.arg == name]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [default for one, default in keywords if one.arg == name and default is not None]
    return found


def _owner(module: _Module, name: str) -> _Module | None:
    """Return the module of a function: this one, or the only other one that has its name."""
    owners = _owners().get(name, [])
    if module in owners:
        return module
    return owners[0] if len(owners) == 1 or (owners and name == "nearest") else None


def _returned(module: _Module, name: str, depth: int) -> Iterator[str]:
    """Yield the texts that a function returns."""
    if (owner := _owner(module, name)) is None:
        return
    function = owner.functions[name]
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from owner.texts(node.value, function, depth)

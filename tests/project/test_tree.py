"""Tidiness is a test: the shape that the house style asks for, checked on every file."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("proto/driftline", "source_agent", "warehouse_agent")
PARAMETERS_MAX = 7  # what belongs together is a value
MONSTER_LINES = 800  # of a module; its header says why it is one
MONSTER_FUNCTION_LINES = 100  # its docstring does
WAITING = {"assign", "converse"}  # they are about to be generators
# How a docstring or a header argues, in one sentence.
MANY_PARAMETERS, LONG = "More than seven parameters:", "Longer than others:"
# They say nothing of what a function returns or does.
VAGUE_FUNCTIONS = {"found", "given", "left", "said", "told", "took"}
GRAB_BAGS = {"utils", "util", "common", "base", "helpers", "core", "manager", "misc"}
TEXT_BYTES_MAX = 1_000_000  # larger files are data
PICTURES = {".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
# Put together here, so that this file passes its own test.
MACHINE_PATH = "/" + "work" + "/"
UNFINISHED = ("TO" + "DO", "FIX" + "ME")

MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.name.startswith("wire_pb2")
)


@functools.cache
def parsed(text: str) -> ast.Module:
    """Return the tree of a module, which several tests look at."""
    return ast.parse(text)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _files() -> list[str]:
    """Every file that is, or is about to be, tracked."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "-C",
            str(ROOT),
            "ls-files",
            "-z",
            "-co",
            "--exclude-standard",
        ],
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git work tree")
    return [name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]


def _texts() -> dict[str, str]:
    texts = {}
    for name in _files():
        path = ROOT / name
        if path.stat().st_size <= TEXT_BYTES_MAX:
            try:
                texts[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return texts


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module(path: Path) -> None:
    assert path.stem not in GRAB_BAGS, "named after nothing"
    assert not list(misshapen(path.read_text(encoding="utf-8")))


def misshapen(text: str) -> Iterator[str]:
    """Yield what a module and its functions lack or have too much of."""
    tree = parsed(text)
    header = ast.get_docstring(tree) or ""
    if not header:
        yield "no header that says what, why and what not"
    if len(text.splitlines()) > MONSTER_LINES and LONG not in header:
        yield f"more than {MONSTER_LINES} lines: split it by what it is about, or argue"
    for function in functions(tree):
        said = ast.get_docstring(function) or ""
        if function.name.strip("_") in VAGUE_FUNCTIONS:
            yield f"{function.name} is named after nothing"
        is_argued = MANY_PARAMETERS in said or function.name in WAITING
        if len(parameters(function)) > PARAMETERS_MAX and not is_argued:
            yield f"{function.name} has more than {PARAMETERS_MAX} parameters: group them, or argue"
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MONSTER_FUNCTION_LINES and LONG not in said:
            yield f"{function.name} has more than {MONSTER_FUNCTION_LINES} lines: cut it, or argue"


def functions(tree: ast.Module) -> Iterator[Function]:
    return (one for one in ast.walk(tree) if isinstance(one, Function))


def parameters(function: Function) -> list[str]:
    """Return the names of all parameters but the object or class of a method."""
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
    return [one.arg for one in every if one.arg not in {"self", "cls"}]


HEADER = '"""A header."""\n'
SEVEN = "a, b, c, *, d, e, f=1, **g"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (HEADER, 0),
        ("x = 1", 1),
        (HEADER + "x = 1\n" * 799, 0),
        (HEADER + "x = 1\n" * 800, 1),
        (f'"""A header. {LONG} a table."""\n' + "x = 1\n" * 800, 0),
        (HEADER + f"def f({SEVEN}): ...", 0),
        (HEADER + f"class A:\n    def f(self, {SEVEN}): ...", 0),
        (HEADER + f"def f({SEVEN.replace(' *,', ' *h,')}): ...", 1),
        (HEADER + f"class A:\n    @classmethod\n    def f(cls, z, {SEVEN}): ...", 1),
        (HEADER + f'def f(z, {SEVEN}):\n    """Do. {MANY_PARAMETERS} as libpq has them."""', 0),
        (HEADER + "def f():\n" + "    x = 1\n" * 99, 0),
        (HEADER + "def f():\n" + "    x = 1\n" * 100, 1),
        (HEADER + f'def f():\n    """Do. {LONG} a table."""\n' + "    x = 1\n" * 100, 0),
        (HEADER + "class A:\n    def _told(self): ...", 1),
        (HEADER + "def g():\n    def found(): ...", 1),
        (HEADER + "def told_by(): ...", 0),
    ],
)
def test_it_finds_what_is_misshapen(text: str, count: int) -> None:
    assert len(list(misshapen(text))) == count


@pytest.mark.starts
def test_no_file_knows_this_machine_or_waits_to_be_finished() -> None:
    found = [
        f"{name}:{number}: {word}"
        for name, text in _texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        for word in (MACHINE_PATH, *UNFINISHED)
        if word in line
    ]
    assert not found, "\n".join(found)


@pytest.mark.starts
def test_every_picture_is_linked_by_a_page() -> None:
    """A benchmark draws many; what no page shows is in nobody's way elsewhere."""
    linked = {
        (ROOT / name).parent.joinpath(target.partition("#")[0]).resolve()
        for name, text in _texts().items()
        if name.endswith(".md")
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
    }
    pictures = {ROOT / name for name in _files() if Path(name).suffix.lower() in PICTURES}
    assert pictures, "nothing looked at"
    assert not pictures - linked, sorted(map(_name, pictures - linked))
    shown = {path for path in linked if path.suffix.lower() in PICTURES}
    assert not shown - pictures, sorted(map(_name, shown - pictures))


def test_no_room_of_benchmarks_is_a_splinter() -> None:
    rooms = [path for path in (ROOT / "benchmarks").iterdir() if (path / "__init__.py").exists()]
    assert rooms
    for room in rooms:
        modules = [path.stem for path in room.glob("*.py") if path.stem != "__init__"]
        assert len(modules) >= 3, f"{room.name}: {sorted(modules)}"


# They read JSON or TOML, or make JSON, and nothing else.
JSON = {
    "source_agent/cli/check.py",
    "source_agent/cli/check_reads.py",
    "source_agent/cli/total.py",
    "source_agent/scan/marked.py",
    "warehouse_agent/cli/commands.py",
    "warehouse_agent/scheduler/claimed_times.py",
    "warehouse_agent/cli/fit.py",
    "warehouse_agent/scheduler/parent_deletions.py",
    "warehouse_agent/columns/layout.py",
    "warehouse_agent/history/marks.py",
    "warehouse_agent/history/notes.py",
    "warehouse_agent/history/view_notes.py",
    "warehouse_agent/json_values.py",
    "warehouse_agent/refresh/auxiliary_table.py",
    "warehouse_agent/refresh/reporting.py",
    "warehouse_agent/timetable/claims.py",
    "warehouse_agent/change_models/memory.py",
    "warehouse_agent/storage/store.py",
    "warehouse_agent/tasks/staging.py",
}


def test_what_is_known_has_a_type() -> None:
    """A dictionary of anything is passed on by readers and writers of JSON alone."""
    found = {
        _name(path)
        for path in MODULES
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        for hint in (node.returns, *(one.annotation for one in node.args.args))
        if hint is not None and re.search(r"(dict|Mapping)\[str, object\]", ast.unparse(hint))
    }
    assert found == JSON

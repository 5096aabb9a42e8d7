"""Tidiness is a test: the shape that the house style asks for, checked on every file."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("proto/driftline", "source_agent", "warehouse_agent")
PARAMETERS_MAX = 7  # what belongs together is a value
MONSTER_LINES = 800  # of a module; its header says why it is one
MONSTER_FUNCTION_LINES = 100  # its docstring does
# How a docstring or a header argues, in one sentence.
MANY_PARAMETERS, LONG = "More than seven parameters:", "Longer than others:"
# They say nothing of what a function returns or does.
VAGUE_FUNCTIONS = {"found", "given", "left", "said", "told", "took"}
GRAB_BAGS = {"utils", "util", "common", "base", "helpers", "core", "manager", "misc"}
TEXT_BYTES_MAX = 1_000_000  # larger files are data
PICTURES = {".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
SPLINTER_LINES = 60
REGISTRIES = {"formats", "registry"}  # they import each kind of a thing
# Short because their kind differs in little: two products of one family.
KINDS = {"mariadb", "mysql"}
COMMON_SHARE = 0.03  # of functions that may assign one name
COMMON = {"at", "name", "rows"}  # a place in a sequence; nouns of the field
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


@dataclass
class Looked:
    """What one walk through a module finds.

    Attributes:
        functions: with the names that each assigns itself, but for variables of comprehensions.
        imports: names of modules, or of what is in them.
    """

    functions: list[tuple[Function, set[str]]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


@functools.cache
def looked(text: str) -> Looked:
    found = Looked()
    left: list[tuple[ast.AST, set[str]]] = [(parsed(text), set())]
    while left:
        node, assigned = left.pop()
        for inner in ast.iter_child_nodes(node):
            within = assigned
            match inner:
                case ast.Name(id=name, ctx=ast.Store()):
                    assigned.add(name)
                    continue
                case ast.Name() | ast.Constant():
                    continue
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    within = set()
                    found.functions.append((inner, within))
                case ast.ClassDef() | ast.Lambda() | ast.comprehension():
                    within = set()
                case ast.ImportFrom(module=str(module)):
                    found.imports |= {module, *(f"{module}.{one.name}" for one in inner.names)}
            left.append((inner, within))
    return found


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
    for function, _ in looked(text).functions:
        said = ast.get_docstring(function) or ""
        if function.name.strip("_") in VAGUE_FUNCTIONS:
            yield f"{function.name} is named after nothing"
        if len(parameters(function)) > PARAMETERS_MAX and MANY_PARAMETERS not in said:
            yield f"{function.name} has more than {PARAMETERS_MAX} parameters: group them, or argue"
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MONSTER_FUNCTION_LINES and LONG not in said:
            yield f"{function.name} has more than {MONSTER_FUNCTION_LINES} lines: cut it, or argue"


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


@functools.cache
def product() -> dict[str, str]:
    return {_name(path): path.read_text(encoding="utf-8") for path in MODULES}


def test_no_public_class_name_twice() -> None:
    assert not classes_named_twice(product())


def test_no_room_holds_one_or_two_things() -> None:
    benchmarks = [_name(path) for path in (ROOT / "benchmarks").rglob("*.py")]
    assert benchmarks
    assert not small_rooms([*product(), *benchmarks])


def test_no_module_is_a_splinter_of_its_neighbour() -> None:
    assert not splinters(product())


def test_no_name_is_that_of_everything() -> None:
    assert not words_for_everything(product())


def classes_named_twice(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the public classes that several modules define, with these."""
    found: dict[str, list[str]] = {}
    for file, text in files.items():
        for node in parsed(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(file)
    return {name: where for name, where in found.items() if len(where) > 1}


def small_rooms(files: Iterable[str]) -> dict[str, set[str]]:
    """Return the folders that hold one or two things, modules or folders: they are no rooms."""
    held: dict[str, set[str]] = {}
    for file in files:
        *folders, module = file.removesuffix(".py").split("/")
        if module not in {"__init__", "__main__"}:
            held.setdefault("/".join(folders), set()).add(module)
        for at in range(1, len(folders)):
            held.setdefault("/".join(folders[:at]), set()).add(folders[at])
    return {folder: inside for folder, inside in held.items() if len(inside) < 3 and "/" in folder}


def splinters(files: Mapping[str, str]) -> list[str]:
    """Return the short modules that one neighbour in their folder alone imports."""
    importers: dict[str, set[str]] = {}
    for file, text in files.items():
        for name in looked(text).imports:
            importers.setdefault(f"{name.replace('.', '/')}.py", set()).add(file)
    found = []
    for file, text in files.items():
        users = importers.get(file.removeprefix("proto/"), set()) - {file}
        near = {user for user in users if Path(user).parent == Path(file).parent}
        is_kind = any(Path(user).stem in REGISTRIES for user in users)
        is_short = (
            len(text.splitlines()) < SPLINTER_LINES and Path(file).stem not in KINDS | REGISTRIES
        )
        if len(users) == 1 and near and is_short and not is_kind:
            found.append(file)
    return found


def words_for_everything(files: Mapping[str, str]) -> dict[str, float]:
    """Return the local names that more than COMMON_SHARE of all functions assign: they say nothing
    any more. Not looked at are variables of comprehensions."""
    counts, every = Counter[str](), 0
    for text in files.values():
        for _, assigned in looked(text).functions:
            counts.update(assigned)
            every += 1
    shares = {name: count / every for name, count in counts.items() if name not in COMMON}
    return {name: share for name, share in shares.items() if share > COMMON_SHARE}


def test_it_finds_what_is_not_worth_its_place() -> None:
    one, two = "class A: ...\nclass _B: ...\n", "class A: ...\nclass _B: ...\nclass C: ...\n"
    assert classes_named_twice({"a/b.py": one, "a/c.py": two}) == {"A": ["a/b.py", "a/c.py"]}
    rooms = ["a/x.py", "a/y.py", "a/z.py", "a/b/__init__.py", "a/b/x.py", "a/b/y.py"]
    assert small_rooms(rooms) == {"a/b": {"x", "y"}}
    assert small_rooms([*rooms, "a/b/c/u.py", "a/b/c/v.py", "a/b/c/w.py"]) == {}
    user = "from a import x\nfrom a.b.y import Y\n"
    tree = {"a/x.py": "X = 1\n", "a/u.py": user, "a/b/y.py": "Y = 1\n"}
    assert splinters(tree) == ["a/x.py"], "y is not in the folder of its user"
    assert splinters(tree | {"a/x.py": "X = 1\n" * SPLINTER_LINES}) == []
    assert splinters(tree | {"a/v.py": "from a.x import X\n"}) == []
    assert splinters({"a/x.py": "X = 1\n", "a/registry.py": user}) == []
    alike = {"a/x.py": "def f():\n    found = 1\n" + "def g():\n    rows = [x for x in y]\n" * 20}
    assert words_for_everything(alike) == {"found": pytest.approx(1 / 21)}
    assert words_for_everything(alike | {"a/y.py": "def g(): ...\n" * 20}) == {}


@pytest.mark.starts
@pytest.mark.parametrize("agent", ["source_agent", "warehouse_agent"])
def test_commands_are_run_and_not_imported(agent: str) -> None:
    """A decision lies in a room: outside the folder of a command line only `main` is imported."""
    inside = ROOT / agent / "cli", ROOT / "tests" / agent / "cli"
    found, looked_at = set(), 0
    for name in _files():
        path = ROOT / name
        if path.suffix != ".py" or any(path.is_relative_to(folder) for folder in inside):
            continue
        looked_at += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == f"{agent}.cli":
                modules = [f"{agent}.cli.{alias.name}" for alias in node.names]
            else:
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {
                f"{name}: {module}"
                for module in modules
                if module.startswith(f"{agent}.cli") and module != f"{agent}.cli.main"
            }
    assert looked_at > 100
    assert not found, "\n".join(sorted(found))


# They read JSON or TOML, or make JSON, and nothing else.
JSON = {
    "source_agent/checks/total.py",
    "source_agent/scan/marked.py",
    "warehouse_agent/cli/commands.py",
    "warehouse_agent/cli/fit.py",
    "warehouse_agent/columns/layout.py",
    "warehouse_agent/history/command_records.py",
    "warehouse_agent/history/marks.py",
    "warehouse_agent/history/notes.py",
    "warehouse_agent/history/view_notes.py",
    "warehouse_agent/json_values.py",
    "warehouse_agent/refresh/auxiliary_table.py",
    "warehouse_agent/refresh/reporting.py",
    "warehouse_agent/timetable/claims.py",
    "warehouse_agent/change_models/memory.py",
    "warehouse_agent/storage/store.py",
    "warehouse_agent/tasks/changed_places.py",
    "warehouse_agent/tasks/staging.py",
}


def test_what_is_known_has_a_type() -> None:
    """A dictionary of anything is passed on by readers and writers of JSON alone."""
    found = {
        _name(path)
        for path in MODULES
        for node, _ in looked(path.read_text(encoding="utf-8")).functions
        for hint in (node.returns, *(one.annotation for one in node.args.args))
        if hint is not None and re.search(r"(dict|Mapping)\[str, object\]", ast.unparse(hint))
    }
    assert found == JSON

"""What a page names is there: files, modules, classes and functions, and tests that are cited.

Looked at are code spans outside of fenced blocks and of the tables of old names. A span that has
the form of a name of ours, and names nothing, is a page that was not read when the code moved.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Self

import pytest

from tests import ROOT
from tests.project.test_tree import parsed

PRODUCT = ("proto/", "source_agent/", "warehouse_agent/")
PAGES = ("README.md", "docs/", "findings/README.md")
# Not all files that git knows: a test that asks git is none of the quick ones.
FOLDERS = (
    *("proto", "source_agent", "warehouse_agent"),
    *("tests", "benchmarks", "deploy", "docs", "findings"),
)
SOURCE_ROOTS = {"proto/": ""}  # where the name of a module begins
# Folders at which a path may begin; one below the product's packages is written without these.
BASES = (
    "",
    "tests/",
    "deploy/",
    "source_agent/",
    "source_agent/engines/",
    "warehouse_agent/",
    "proto/driftline/",
)
# First parts of dotted names that are not ours: libraries, catalogues, and words that stand for a
# name of the reader's.
FOREIGN = {"XXH64", "app", "grpc", "np", "pyspark", "schema", "source", "spark"}
# Names with a first part like our package's: entry points, the gRPC service, settings of a session
# of PostgreSQL, metadata of columns.
OTHER_NAMES = {
    *("driftline.engines", "driftline.Source", "driftline.value1", "driftline.value2"),
    *("driftline.name", "driftline.type"),
}
# Of the gRPC service, loggers, values, failpoints, a mutant's probe: what follows the name of a
# package in a string and is no module.
FOREIGN_PARTS = {
    *("Source", "_probe", "engines", "erp", "name", "password", "py", "source", "tests", "type"),
    *("value", "value1", "value2", "value3", "warehouse"),
}
MADE = {"dist/", "locks/", "warehouse/"}  # by a command
# Functions of databases and libraries.
FOREIGN_CALLS = {"clock_timestamp", "pg_export_snapshot", "random"}
# Extensions of names of files; all but Python's belong to users.
EXTENSIONS = {"csv", "key", "password", "pem", "proto", "py", "sh", "sql", "toml"}

_CLASS = re.compile(r"^class (\w+)", re.M)
_DEF = re.compile(r"\bdef (\w+)\(")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)
_CITED = re.compile(r"([\w./-]+\.py)\b(?:::([\w.]+))?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_CALLED = re.compile(r"([A-Za-z_][\w.]*)\(\)")
_FOLDER = re.compile(r"[\w*]+(?:/[\w*]+)*/")
_MODULE = re.compile(r"python -m ([\w.]+)")


@dataclass(frozen=True)
class Tree:
    """The names of a tree.

    Attributes:
        files: of all of it.
        code: text of Python files, by name.
        settings: tables of the configuration files, with the names in them.
        messages: of the wire, with their fields.
    """

    files: frozenset[str]
    code: Mapping[str, str]
    settings: Mapping[str, frozenset[str]] = field(default_factory=dict)
    messages: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _defined: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Mapping[str, str], *more: str) -> Self:
        return cls(frozenset({*code, *more}), code)

    @cached_property
    def folders(self) -> set[str]:
        return {f"{parent}/" for file in self.files for parent in PurePosixPath(file).parents}

    def defined(self, file: str) -> set[str]:
        """Names that a module defines or imports, and those in its classes, as `Class.name`."""
        if file not in self._defined:
            self._defined[file] = set(_names(parsed(self.code[file])))
        return self._defined[file]

    @cached_property
    def modules(self) -> dict[str, str]:
        found = {}
        for file in self.code:
            name = file.removesuffix(".py").removesuffix("/__init__")
            for root, prefix in SOURCE_ROOTS.items():
                name = prefix + name[len(root) :] if name.startswith(root) else name
            found[name.replace("/", ".")] = file
        return found

    @cached_property
    def owners(self) -> dict[str, list[str]]:
        """Files of the modules with one last part, and of the classes of one name."""
        found: dict[str, list[str]] = {}
        for name, file in self.modules.items():
            if not file.startswith("tests/"):
                for one in (name.rpartition(".")[2], *_CLASS.findall(self.code[file])):
                    found.setdefault(one, []).append(file)
        return found

    def members(self, owner: str) -> set[str]:
        """Return the names in modules and classes of a name, and in messages of the wire."""
        inside = set()
        for file in self.owners.get(owner, ()):
            is_module = PurePosixPath(file.removesuffix("/__init__.py")).stem == owner
            start = "" if is_module else f"{owner}."
            inside |= {n.removeprefix(start) for n in self.defined(file) if n.startswith(start)}
        return inside | self.messages.get(owner, frozenset())

    @cached_property
    def functions(self) -> set[str]:
        return {name for text in self.code.values() for name in _DEF.findall(text)}


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
                yield from (f"{name}.{inner}" for inner in _names(node))
            case ast.Assign() | ast.AnnAssign():
                yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
            case ast.Import() | ast.ImportFrom():
                yield from ((one.asname or one.name) for one in node.names)
            case ast.If() | ast.Try():
                yield from _names(node)


def unknown(text: str, tree: Tree) -> list[str]:
    """Return the code spans of a page that have the form of a name of the tree and name nothing."""
    text = _FENCE.sub("", text)
    spans = dict.fromkeys(re.findall(r"`([^`\n]+)`", text))
    return [span for span in spans if not all(_is_known(span, tree))]


def _is_known(span: str, tree: Tree) -> Iterator[bool]:
    for path, test in _CITED.findall(span):
        yield _is_file(path, tree)
        yield not test or test in (tree.defined(path) if path in tree.files else tree.functions)
    for module in _MODULE.findall(span):
        yield module.partition(".")[0] not in _packages(tree) or _resolves(module, tree)
    is_theirs = span.startswith("_driftline") or span[:-1].isupper() or span in MADE
    if _FOLDER.fullmatch(span) and not is_theirs:
        yield any(_is_folder(f"{base}{span}", tree) for base in BASES)
    if (called := _CALLED.fullmatch(span)) is not None:
        name = called[1]
        yield _is_name(name, tree) if "." in name else name in tree.functions | FOREIGN_CALLS
    if _DOTTED.fullmatch(span) and span.rpartition(".")[2] not in EXTENSIONS:
        yield _is_name(span, tree)


def _is_folder(path: str, tree: Tree) -> bool:
    return bool(fnmatch.filter(tree.folders, path)) if "*" in path else path in tree.folders


def _is_file(path: str, tree: Tree) -> bool:
    if "/" not in path:
        return any(file.rpartition("/")[2] == path for file in tree.files)
    return any(f"{base}{path}" in tree.files for base in BASES)


def _packages(tree: Tree) -> set[str]:
    return {name.partition(".")[0] for name in tree.modules}


def _is_name(name: str, tree: Tree) -> bool:
    first, _, rest = name.partition(".")
    if first in FOREIGN or name in OTHER_NAMES or rest in {"COLUMN", "HOURS"}:  # of a user's file
        return True
    settings = tree.settings.get(first, frozenset())
    if settings and all(part in settings or part.isupper() for part in rest.split(".")):
        return True
    if first in _packages(tree):
        return _resolves(name, tree)
    known = tree.members(first)
    return rest in known or (first in tree.messages and rest.partition(".")[0] in known)


def _resolves(name: str, tree: Tree) -> bool:
    """Return True for a module, or for a name in one."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        if (file := tree.modules.get(".".join(parts[:at]))) is not None:
            return at == len(parts) or ".".join(parts[at:]) in tree.defined(file)
    return False


def _settings() -> dict[str, frozenset[str]]:
    found = {}
    for side in ("source", "warehouse"):
        schema = json.loads((ROOT / f"docs/schemas/{side}.schema.json").read_text())
        for table, body in schema["properties"].items():
            found[table] = frozenset(_properties(body))
    return found


def _messages() -> dict[str, frozenset[str]]:
    text = (ROOT / "proto/driftline/wire.proto").read_text()
    found = re.findall(r"^message (\w+) \{(.*?)^\}", text, re.M | re.S)
    return {name: frozenset(re.findall(r"(\w+) = \d+;", body)) for name, body in found}


def _properties(body: Any) -> Iterator[str]:
    if isinstance(body, dict):
        yield from body.get("properties", ())
        for inner in body.values():
            yield from _properties(inner)
    elif isinstance(body, list):
        for inner in body:
            yield from _properties(inner)


def stale(text: str, tree: Tree) -> list[str]:
    """Return the code spans of a module's text that begin with a room of ours and name nothing."""
    spans = dict.fromkeys(re.findall(r"`([a-z_]\w*(?:\.\w+)+)`", text))
    rooms = {part for name in tree.modules for part in name.split(".")[:-1]} - _packages(tree)
    ours = [span for span in spans if span.split(".")[0] in rooms - {*FOREIGN, "server"}]
    return [span for span in ours if not any(_ends_in(span, tree))]


def _ends_in(span: str, tree: Tree) -> Iterator[bool]:
    """Yield True for each module whose name ends with the span, or with all of it but a name."""
    parts = span.split(".")
    for name, file in tree.modules.items():
        for at in range(1, len(parts) + 1):
            if f".{name}".endswith("." + ".".join(parts[:at])):
                yield at == len(parts) or ".".join(parts[at:]) in tree.defined(file)


@pytest.fixture(scope="module")
def tree() -> Tree:
    files = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix != ".pyc" and path.is_file()
    }
    files |= {path.name for path in ROOT.iterdir() if path.is_file()}
    code = {name: (ROOT / name).read_text() for name in files if name.endswith(".py")}
    return Tree(frozenset(files), code, _settings(), _messages())


def test_what_pages_name_is_there(tree: Tree) -> None:
    pages = [n for n in tree.files if n.endswith(".md") and n.startswith(PAGES)]
    assert pages
    found = {name: unknown((ROOT / name).read_text(), tree) for name in pages}
    assert not any(found.values()), {name: spans for name, spans in found.items() if spans}


def test_what_modules_name_is_there(tree: Tree) -> None:
    """The words of a module that moved stay behind in the headers of others."""
    product = [
        n for n in tree.code if n.startswith(("proto/", "source_agent/", "warehouse_agent/"))
    ]
    assert len(product) > 400
    found = {name: stale(tree.code[name], tree) for name in product if "_pb2" not in name}
    assert not any(found.values()), {name: spans for name, spans in found.items() if spans}


def patched(text: str, tree: Tree) -> list[str]:
    """Return the names of modules and what is in them that stand in a text as strings, to be
    imported or replaced by it, and are not there."""
    whole = re.findall(r"""["']((?:driftline|source_agent|warehouse_agent)(?:\.\w+)+)["']""", text)
    short = re.findall(r"""["']([a-z_]+(?:\.[a-z_]+)+):([A-Za-z_]\w*)[:\w]*["']""", text)
    names = [(name, "") for name in whole] + [(f"warehouse_agent.{a}", b) for a, b in short]
    return [f"{a} {b}".strip() for a, b in dict.fromkeys(names) if not _is_there(a, b, tree)]


def _is_there(name: str, within: str, tree: Tree) -> bool:
    parts = [*name.split("."), *within.split()]
    if parts[1] in FOREIGN_PARTS:
        return True
    for at in range(len(parts), 0, -1):
        module = ".".join(parts[:at])
        if (file := tree.modules.get(module)) is not None:
            return at == len(parts) or parts[at] in tree.defined(file)
        if f"{module.replace('.', '/')}/" in tree.folders:
            return at == len(parts)
    return False


def test_what_tests_name_as_text_is_there(tree: Tree) -> None:
    """A test that kills, replaces or imports by a name fails late, and only if it is run."""
    others = [n for n in tree.code if n.startswith(("tests/", "benchmarks/"))]
    found = {n: patched(tree.code[n], tree) for n in others if "test_names_in_docs" not in n}
    assert not any(found.values()), {name: spans for name, spans in found.items() if spans}


SMALL = Tree.of(
    {
        "warehouse_agent/runs/batch.py": "import heap\n\nMOST = 4\n\nclass Runner:\n    limit = 3\n"
        "    def refresh(self): ...\n",
        "tests/faults/test_disk.py": "def test_full(): ...\n",
    },
    "docs/flow.svg",
)


@pytest.mark.parametrize(
    ("span", "is_named"),
    [
        ("warehouse_agent/runs/batch.py", True),
        ("runs/batch.py", True),
        ("batch.py", True),
        ("runs/schedule.py", False),
        ("schedule.py", False),
        ("faults/test_disk.py::test_full", True),
        ("faults/test_disk.py::test_empty", False),
        ("warehouse_agent/runs/batch.py::Runner.refresh", True),
        ("warehouse_agent/runs/batch.py::refresh", False),
        ("./tests/run --soak tests/faults/test_disk.py", True),
        ("./tests/run --soak tests/wan/test_disk.py", False),
        ("python -m warehouse_agent.runs.batch FOLDER", True),
        ("python -m warehouse_agent.refresh.order", False),
        ("python -m pip", True),
        ("runs/", True),
        ("tests/*/", True),
        ("history/", False),
        ("warehouse_agent.runs.batch.Runner", True),
        ("warehouse_agent.run.Runner", False),
        ("batch.Runner", True),
        ("batch.MOST", True),
        ("batch.LEAST", False),
        ("Runner.refresh", True),
        ("Runner.close", False),
        ("Runner.MOST", False),
        ("sizing.open_sketch", False),
        ("refresh()", True),
        ("close()", False),
        ("random()", True),
        ("source.toml", True),
        ("np.add.at", True),
        ("a word", True),
    ],
)
def test_it_finds_what_is_not_there(span: str, is_named: bool) -> None:
    assert unknown(f"See `{span}`.", SMALL) == ([] if is_named else [span])
    assert not unknown(f"```sh\n`{span}`\n```\n", SMALL)


def test_it_finds_modules_that_moved_away() -> None:
    good = (
        "`runs.batch`, `runs.batch.Runner`, `runs.batch.Runner.refresh`, `report.counted`, `runs`"
    )
    assert stale(good, SMALL) == []
    bad = "`runs.schedule`, `runs.batch.Loop`"
    assert stale(f"{good}, {bad}", SMALL) == ["runs.schedule", "runs.batch.Loop"]


def test_it_finds_names_in_texts_of_tests() -> None:
    good = """("runs.batch:Runner", "warehouse_agent.runs.batch.Runner.x", "runs.batch:heap:x")"""
    assert patched(good, SMALL) == []
    bad = """["runs.schedule:Runner", 'warehouse_agent.runs.batch.Loop', "runs.batch:Loop:x"]"""
    assert patched(good + bad, SMALL) == [
        "warehouse_agent.runs.batch.Loop",
        "warehouse_agent.runs.schedule Runner",
        "warehouse_agent.runs.batch Loop",
    ]

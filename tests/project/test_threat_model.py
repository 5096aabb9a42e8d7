"""Every sentence of docs/threat-model.md names tests that exist, or says that none shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.project.test_docs import page, rows_of_tables
from tests.project.test_tree import MODULES

SHOWN_BY = "shown by"
SENTENCES = [
    cells for cells in rows_of_tables(page("threat-model.md")) if len(cells) == 2 and cells[0]
]
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
NONE = re.compile(r"none[^:]*: \S.{10,}")
SECTIONS = ("on the line", "certificate of a warehouse", "malicious warehouse",
            "certificate of a source", "malicious source", "plug-in", "Secrets")  # fmt: skip

# What runs text or bytes as code, or loads code by a name that was computed.
RUNS_DATA = {
    "eval", "exec", "compile", "__import__", "import_module", "entry_points", "run_path",
    "run_module", "os.system", "os.popen", "pickle.load", "pickle.loads", "marshal.load",
    "marshal.loads", "shelve.open", "cloudpickle.loads", "yaml.load",
}  # fmt: skip
# The modules of the engines and their drivers, out of a table in the same file; and engines that
# installed packages declare, by the scheme of the DBA's own URL.
BY_CONSTANT_NAME = {
    ("source_agent/engines/registry.py", "import_module"),
    ("source_agent/engines/plug_ins.py", "entry_points"),
}


@cache
def named_in(path: Path) -> set[str]:
    """The functions of a module, and those that it has of others by `import *`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            found |= named_in(ROOT / (node.module.replace(".", "/") + ".py"))
    return found


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [row for row in SENTENCES if row[1] != SHOWN_BY and not set(row[0]) <= set("- ")],
    ids=lambda text: text[:40],
)
def test_a_sentence_is_shown_by_tests_or_by_none(sentence: str, shown: str) -> None:
    assert sentence.endswith("."), "a whole sentence"
    named = TEST.findall(shown)
    assert bool(named) != bool(NONE.fullmatch(shown)), "tests, or `none:` and why"
    assert len(named) == len(re.findall(r"`[^`]*\btest_\w+`", shown)), "each with its file"
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert test in named_in(path), f"{file}::{test}"


def test_everybody_is_there() -> None:
    headings = re.findall(r"^## (.+)$", page("threat-model.md"), re.M)
    for section in SECTIONS:
        assert any(section in heading for heading in headings), section
    assert len(SENTENCES) > 50


def _called(node: ast.Call) -> set[str]:
    """The name of what is called, and with what it is an attribute of."""
    if isinstance(node.func, ast.Name):
        return {node.func.id}
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return {f"{node.func.value.id}.{node.func.attr}"}
    return set()


def runs_of_data(text: str) -> set[str]:
    """The calls of a module that run data, or start a shell."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            names = _called(node)
            found |= names & RUNS_DATA
            found |= {n.rpartition(".")[2] for n in names if n.startswith(("importlib.", "runpy."))}
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and (
                    not isinstance(keyword.value, ast.Constant) or keyword.value.value
                ):
                    found.add(f"{keyword.arg}=")
    return found


def test_nothing_is_run_that_came_as_data() -> None:
    found = {
        (str(path.relative_to(ROOT)), call)
        for path in MODULES
        for call in runs_of_data(path.read_text(encoding="utf-8"))
    }
    assert found == BY_CONSTANT_NAME


@pytest.mark.parametrize(
    "text",
    [
        "eval(x)", "import pickle\npickle.loads(x)", "subprocess.run(x, shell=True)",
        "importlib.import_module(x)", "np.load(x, allow_pickle=flag)", "f = lambda: exec(x)",
    ],
)  # fmt: skip
def test_what_runs_data_is_found(text: str) -> None:
    assert runs_of_data(text)

"""Tidiness is a test: the shape that the house style asks for, checked on every file."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests import ROOT

PACKAGES = ("proto/driftline", "source_agent", "warehouse_agent")
MODULE_LINES_MAX = 500  # split by subject before that; a splinter belongs to its neighbour
FOLDER_MODULES_MAX = 14  # more want rooms
FUNCTION_LINES_MAX = 70
GRAB_BAGS = {"utils", "util", "common", "base", "helpers", "core", "manager", "misc"}
TEXT_BYTES_MAX = 1_000_000  # larger files are data
PICTURES = {".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"}
# Put together here, so that this file passes its own test.
MACHINE_PATH = "/" + "work" + "/"
UNFINISHED = ("TO" + "DO", "FIX" + "ME")

MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.name.startswith("wire_pb2")
)


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
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no header that says what, why and what not"
    lines = len(text.splitlines())
    assert lines <= MODULE_LINES_MAX, f"{lines} lines: split it by what it is about"
    assert path.stem not in GRAB_BAGS, "named after nothing"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("agent", ["source_agent", "warehouse_agent"])
def test_no_folder_is_a_heap(agent: str) -> None:
    for folder in {path.parent for path in MODULES if path.is_relative_to(ROOT / agent)}:
        modules = [p.stem for p in folder.glob("*.py") if p.stem != "__init__"]
        assert len(modules) <= FOLDER_MODULES_MAX, f"{_name(folder)}: {sorted(modules)}"


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


def test_no_room_of_benchmarks_is_a_splinter_or_a_heap() -> None:
    rooms = [path for path in (ROOT / "benchmarks").iterdir() if (path / "__init__.py").exists()]
    assert rooms
    for room in rooms:
        modules = [path.stem for path in room.glob("*.py") if path.stem != "__init__"]
        assert 3 <= len(modules) <= FOLDER_MODULES_MAX, f"{room.name}: {sorted(modules)}"


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        for hint in (node.returns, *(one.annotation for one in node.args.args))
        if hint is not None and re.search(r"(dict|Mapping)\[str, object\]", ast.unparse(hint))
    }
    assert found == JSON

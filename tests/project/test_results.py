"""Results: a page for each room of the benchmarks, and no number without its command and commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.project.promises import anchor

PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
ROOMS = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__init__.py")}
WORDS_MAX = 2500
_COMMAND = re.compile(r"`python -m (?:benchmarks|tests)\.[\w.]+|tests/run\b|`tests/[\w/]+\.py`")
_COMMIT = re.compile(r"\b[0-9a-f]{7,8}\b")
_TO_RESULTS = re.compile(r"\((?:\.\./|docs/)?(results/\w+\.md)(?:#([\w-]+))?\)")


def sections(page: Path) -> dict[str, str]:
    """Return the text of each section of a page by its anchor, behind the page's head."""
    head, *parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)
    return {anchor(part.split("\n")[0]): head + part for part in parts}


def test_every_room_has_a_page() -> None:
    assert {page.stem for page in PAGES} == ROOMS | {"papers", "tests"}
    index = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert {f"results/{page.name}" for page in PAGES} == {m[0] for m in _TO_RESULTS.findall(index)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_number_has_its_command_and_its_commit(page: Path) -> None:
    for name, text in sections(page).items():
        assert _COMMAND.search(text), name
        assert _COMMIT.search(text), name
        if page.stem in ROOMS:
            named = re.findall(r"`python -m benchmarks\.(\w+)", text)
            assert page.stem in named, name
    assert len(page.read_text(encoding="utf-8").split()) <= WORDS_MAX


def test_links_to_results_lead_to_a_number() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target, at in _TO_RESULTS.findall(page.read_text(encoding="utf-8")):
            if page.name != "results.md":
                found = sections(ROOT / "docs" / target)
                below = {anchor(line) for text in found.values() for line in text.splitlines()}
                assert at in found or at in below, f"{page.name}: {target}#{at}"


def test_a_number_of_the_readme_stands_in_the_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("\n## When to use something else")[2].partition("\n\n## ")[0]
    (times,) = re.findall(r"took ([\d.]+) times fewer bytes", readme)
    cells = [line.strip("|").split("|")[-1] for line in table.splitlines() if line.startswith("|")]
    numbers = {times} | {n for cell in cells for n in re.findall(r"[\d.,]*\d [kM]B|\d+\.\d+", cell)}
    results = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(numbers) >= 10
    assert {n for n in numbers if n not in results} <= {"0.6.0"}, "a version of reladiff"

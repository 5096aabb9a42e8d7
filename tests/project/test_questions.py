"""Every page is two clicks from the README at most, and so are the answers in `questions.md`."""

from __future__ import annotations

import re
from pathlib import Path

from tests import ROOT
from tests.project.promises import anchor

CLICKS_MAX = 2
_LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)")
_ROW = re.compile(r"^\| [EDH]\d+ \| .+ \| ([^ #]+)(?:#(\S+))? \| (\d) \|$", re.M)


def clicks() -> dict[Path, int]:
    """Return the pages that links lead to from the README, and how many links away each is."""
    found = {ROOT / "README.md": 0}
    waiting = [*found]
    for page in waiting:  # grows
        for target in _LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            if linked not in found:
                found[linked] = found[page] + 1
                waiting.append(linked)
    return found


def test_every_page_is_near() -> None:
    away = clicks()
    far = [p for p in (ROOT / "docs").rglob("*.md") if away.get(p, CLICKS_MAX + 1) > CLICKS_MAX]
    assert not far


def test_every_answer_is_near() -> None:
    away = clicks()
    rows = _ROW.findall((Path(__file__).parent / "questions.md").read_text(encoding="utf-8"))
    assert len(rows) == 30
    for place, section, said in rows:
        assert away[ROOT / place] == int(said) <= CLICKS_MAX, place
        headings = re.findall(r"^#+ (.+)$", (ROOT / place).read_text(encoding="utf-8"), re.M)
        assert not section or section in map(anchor, headings), (place, section)

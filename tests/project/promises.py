"""Promises of the pages: where each of them stands. `promises.md` beside this lists them.

A promise is a line that says shortly what a page promises, limits or warns of. Its words in bold
stand together in one paragraph, item or row of a page; the links behind the arrow name the pages.
`python -m tests.project.promises` places all promises again, and names those that no page has any
more. No test here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import ROOT

LIST = ROOT / "tests" / "project" / "promises.md"
PLACES_MAX = 2
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
_BEGINS = re.compile(r"\||- |\d+\. |#")


@dataclass(frozen=True)
class Promise:
    """One line of the list, and the places that it names, as links from the root."""

    text: str
    places: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """What has to stand together."""
        return [plain(words) for words in re.findall(r"\*\*(.+?)\*\*", self.text)]

    def stands_in(self, paragraph: str) -> bool:
        return all(words in paragraph for words in self.words)


def plain(text: str) -> str:
    """Return a text without the marks of Markdown, in lower case, with single blanks."""
    text = re.sub(r"!?\[((?:[^\]\\]|\\.)*)\]\([^)\s]+\)", r"\1", text)
    return " ".join(re.sub(r"[`*\\]", "", text).lower().split())


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as a renderer makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def pages() -> list[Path]:
    """Return the pages in which a promise may stand, those with the last word first."""
    found = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    return sorted(found, key=lambda path: (path.parent == ROOT, path))


@cache
def paragraphs(text: str) -> tuple[tuple[str, str], ...]:
    """Return the anchor and the plain text of each paragraph, item and row of a page."""
    found, at, lines = list[tuple[str, str]](), "", list[str]()
    for line in [*_FENCE.sub("", text).splitlines(), "#"]:
        if not line.strip() or _BEGINS.match(line):
            if lines:
                found.append((at, plain(" ".join(lines))))
            lines = []
        if line.startswith("#"):
            at = "" if line.startswith("# ") else anchor(line.lstrip("#").strip())
        elif line.strip():
            lines.append(line)
    return tuple(found)


@cache
def whole(text: str) -> str:
    """Return the plain text of a page: no other page is split into paragraphs to be searched."""
    return plain(text)


def listed(text: str) -> list[Promise | str]:
    """Return the lines of a list: its promises, and as they are all others."""
    found: list[Promise | str] = []
    for line in text.splitlines():
        if not line.startswith("- "):
            found.append(line)
            continue
        what, _, where = line.removeprefix("- ").partition(" → ")
        links = re.findall(r"\]\(([^)]+)\)", where)
        found.append(Promise(what, tuple(link.removeprefix("../../") for link in links)))
    return found


def written(lines: Iterable[Promise | str]) -> str:
    """Return the text of a list."""
    return "".join(f"{line if isinstance(line, str) else _line(line)}\n" for line in lines)


def _line(promise: Promise) -> str:
    links = (f"[{Path(place).name}](../../{place})" for place in promise.places)
    return f"- {promise.text} → {', '.join(links)}"


def stands(promise: Promise, texts: Mapping[str, str]) -> list[str]:
    """Return the places in the texts of pages in which a promise stands; those it names first."""
    found = dict.fromkeys(
        f"{page}#{at}" if at else page
        for page, text in texts.items()
        if promise.stands_in(whole(text))
        for at, paragraph in paragraphs(text)
        if promise.stands_in(paragraph)
    )
    return sorted(found, key=lambda place: place not in promise.places)


def texts_of_pages() -> dict[str, str]:
    """Return the text of each page, by its path from the root."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages()}


def main() -> int:
    """Place every promise anew; return 1 if one stands nowhere."""
    texts = texts_of_pages()
    lines: list[Promise | str] = []
    lost = 0
    for line in listed(LIST.read_text(encoding="utf-8")):
        if isinstance(line, str):
            lines.append(line)
            continue
        places = stands(line, texts)
        if not places:
            lost += 1
            print(f"in no page: {line.text}", file=sys.stderr)
        lines.append(Promise(line.text, tuple(places[:PLACES_MAX]) or line.places))
    LIST.write_text(written(lines), encoding="utf-8")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())

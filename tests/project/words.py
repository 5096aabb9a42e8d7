"""How many words the pages have: `python -m tests.project.words` prints them, the longest first.

A word is what stands between blanks and holds a letter or a digit: the marks of tables are none.
The protocol, guarantees, threat model, types, views and errors are normative, and may be long;
`docs/reference` is generated and not counted. No test here.
"""

from __future__ import annotations

from pathlib import Path

from tests import ROOT

NORMATIVE = ("protocol", "guarantees", "threat-model", "types", "views", "errors")
ALL_MAX = 50_000
OTHERS_GOAL = 24_000
"""Of pages that are not normative: nobody finishes more. A release begins with it reached."""
OTHERS_MAX = 24_250
"""What they may have between two releases: the goal, and some room for what changes."""
README_MAX = 900


def words(text: str) -> int:
    """Return the number of words of a text."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def counted() -> dict[Path, int]:
    """Return the words of each page that is written by hand, by its path from the root."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    return {
        page.relative_to(ROOT): words(page.read_text(encoding="utf-8"))
        for page in pages
        if ROOT / "docs" / "reference" not in page.parents
    }


def of_others(found: dict[Path, int]) -> int:
    """Return the words of all pages that are not normative."""
    return sum(number for page, number in found.items() if not is_normative(page))


def is_normative(page: Path) -> bool:
    """Return True for a page whose sentences bind the code."""
    return page.parent == Path("docs") and page.stem in NORMATIVE


def main() -> None:
    """Print the words of each page, and those of all."""
    found = counted()
    for page, number in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{number:7,}  {page}{', normative' if is_normative(page) else ''}")
    others = of_others(found)
    print(f"{sum(found.values()):7,}  all, at most {ALL_MAX:,}")
    print(f"{others:7,}  not normative; goal {OTHERS_GOAL:,}, at most {OTHERS_MAX:,}")


if __name__ == "__main__":
    main()

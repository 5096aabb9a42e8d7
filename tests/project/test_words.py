"""Pages end: they have no more words than `words.py` allows."""

from __future__ import annotations

from pathlib import Path

from tests.project.words import ALL_MAX, OTHERS_MAX, README_MAX, counted, of_others, words


def test_pages_end() -> None:
    found = counted()
    assert sum(found.values()) <= ALL_MAX
    assert of_others(found) <= OTHERS_MAX
    assert found[Path("README.md")] <= README_MAX


def test_marks_of_tables_are_no_words() -> None:
    assert words("| a | 1.5 MB |\n|---|---|\n- **b** → c") == 5

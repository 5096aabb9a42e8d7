"""Changes: one file each, as towncrier reads them; what a release did stands in CHANGELOG.md."""

from __future__ import annotations

import re
import tomllib

from tests import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
CHANGES = [path for path in (ROOT / SETTINGS["directory"]).iterdir() if path.name != "README.md"]
WORDS_MAX = 100


def test_a_change_is_a_file_of_a_known_kind() -> None:
    kinds = "|".join(kind["directory"] for kind in SETTINGS["type"])
    for path in CHANGES:
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({kinds})\.md", path.name), path.name
        text = path.read_text(encoding="utf-8")
        assert 0 < len(text.split()) <= WORDS_MAX, path.name
        assert not text.startswith(("#", "- ")), path.name


def test_the_changelog_has_a_place_for_them() -> None:
    text = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8")
    assert text.count(SETTINGS["start_string"]) == 1
    assert len(text.partition("\n## 0.1.0")[2].split()) <= 600

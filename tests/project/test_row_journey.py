"""The journey of one row is short, and goes through every layer.

`test_names_in_docs` finds that each function that it names is in the file that it names.
"""

from __future__ import annotations

import re

from tests import ROOT

PAGE = (ROOT / "docs" / "developing" / "row-journey.md").read_text(encoding="utf-8")
STEPS = re.findall(r"`([\w/]+\.py)::[\w.]+`", PAGE)
ROOMS = ("engines", "scan", "methods", "server", "transport", "tasks", "refresh", "storage")


def test_the_journey_is_short_and_whole() -> None:
    assert len(PAGE.split()) <= 800
    assert len(STEPS) >= 30
    assert all((ROOT / path).is_file() for path in STEPS), "whole paths"
    assert {room for path in STEPS for room in path.split("/")} >= set(ROOMS)

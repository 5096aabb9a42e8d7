"""The walks of docs/operating/deployment.md: who runs which of its commands."""

from __future__ import annotations

from tests import ROOT
from tests.project.test_docs import of, scenario

FOLLOWED = {
    "release": "by the fixture of the release, into a folder of its own",
    "deploy-source": "tests/deploy/test_systemd.py",
    "deploy-warehouse": "tests/deploy/test_systemd.py",
}


def test_every_command_is_followed() -> None:
    blocks = [b for b in of("sh") if b.page == "operating/deployment.md" and b.runs]
    assert {b.attributes.get("scenario", "") for b in blocks} == set(FOLLOWED)
    assert scenario("release") == ["deploy/release dist"]


def test_each_file_says_what_it_is_for() -> None:
    """In a comment or a docstring of its first lines, as the page promises."""
    files = [
        p for p in (ROOT / "deploy").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    ]
    assert len(files) >= 20
    for file in files:
        lines = file.read_text(encoding="utf-8").removeprefix("#!/usr/bin/env bash\n")
        assert lines.startswith(('"""', "# ")) or file.suffix == ".json", file.name

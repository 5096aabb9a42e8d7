"""The walks of docs/operating/deployment.md: who runs which of its commands."""

from __future__ import annotations

from tests import ROOT
from tests.project.test_docs import coded, of, page, rows_of_tables, scenario

FOLLOWED = {
    "release": "by the fixture of the release, into a folder of its own",
    "deploy-source": "tests/deploy/test_systemd.py",
    "deploy-warehouse": "tests/deploy/test_systemd.py",
}


def test_every_command_is_followed() -> None:
    blocks = [b for b in of("sh") if b.page == "operating/deployment.md" and b.runs]
    assert {b.attributes.get("scenario", "") for b in blocks} == set(FOLLOWED)
    assert scenario("release") == ["deploy/release dist"]


def test_the_page_names_all_that_is_there() -> None:
    rows = rows_of_tables(page("operating/deployment.md").split("## ")[0])
    listed = {name.rstrip("/") for row in rows for name in coded(row[0])} - {"deploy"}
    tracked = {path.name for path in (ROOT / "deploy").iterdir()} - {"__pycache__"}
    assert listed == tracked

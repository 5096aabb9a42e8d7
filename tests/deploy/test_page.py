"""The walks of docs/deployment.md: who runs which of its commands."""

from __future__ import annotations

from tests.project.test_docs import of

# `deploy/release` is run by the fixture of the release, into a folder of its own.
FOLLOWED = {"release": ["deploy/release dist"]}


def test_every_command_is_followed() -> None:
    blocks = [b for b in of("sh") if b.page == "deployment.md" and b.runs]
    found = {b.attributes.get("scenario", ""): b.commands for b in blocks}
    assert found == FOLLOWED

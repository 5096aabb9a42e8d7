"""Docstrings of the product are of the kind that the house style asks for (`docstrings`)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.project import docstrings

# Findings still allowed by room; only ever fewer. A room that is not listed has none.
ALLOWED: dict[str, int] = {}


@pytest.fixture(scope="module")
def found() -> list[docstrings.Finding]:
    return docstrings.findings()


def test_public_docstrings(found: list[docstrings.Finding]) -> None:
    rooms = Counter(f.room for f in found)
    worse = {room: n for room, n in rooms.items() if n > ALLOWED.get(room, 0)}
    said = [f"{f.path}:{f.line}: {f.name}: {f.reason}" for f in found if f.room in worse]
    assert not worse, "\n".join([f"more than allowed: {worse}", *said])


def test_no_room_is_allowed_without_need(found: list[docstrings.Finding]) -> None:
    assert ALLOWED.keys() <= {f.room for f in found}

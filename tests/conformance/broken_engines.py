"""Engines that are wrong on purpose, each in one way: a plugin of pytest for the suite.

Each is our SQLite with one mistake of a kind that drivers make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from source_agent.engines.encoding import rows
from source_agent.engines.encoding.plain_values import BytesEncoder, FixedWidthEncoder
from source_agent.engines.interface import Capabilities
from source_agent.engines.sqlite import session, types
from source_agent.engines.sqlite.values import ENCODERS, read_sql
from tests.harness.legacies import OfSQLite

Break = Callable[[pytest.MonkeyPatch], None]


def _encoding(form: str, encoder: Any) -> Break:
    """Another encoder for the columns of one form."""
    return lambda patch: patch.setitem(ENCODERS, form, lambda _: encoder)


def _expression(form: str, read: str) -> Break:
    """Another read expression for the columns of one form."""
    sound = read_sql

    def broken(column: str, its: str, encoding: str) -> str:
        found = sound(column, its, encoding)
        return read.format(found) if its == form else found

    return lambda patch: patch.setattr(types, "read_sql", broken)


def _without_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Each statement reads what is there now; the session still says that it is exact."""
    patch.setattr(session.SqliteSession, "_begin", lambda self: None)


def _without_interrupt(patch: pytest.MonkeyPatch) -> None:
    """`interrupt` returns at once, and the reading thread goes on."""
    patch.setattr(session.SqliteSession, "interrupt", lambda self: None)


def _without_capabilities(patch: pytest.MonkeyPatch) -> None:
    """The session lacks what its shapes promise."""
    patch.setattr(session.SqliteSession, "capabilities", Capabilities())


BROKEN: dict[str, Break] = {
    "sound": lambda _: None,
    "rounds": _encoding("real", FixedWidthEncoder("float8", convert=lambda v: float(f"{v:.15g}"))),
    "pads": _encoding("text", rows.variable(lambda v: bytes(v).ljust(3))),
    "decodes": _encoding("text", rows.variable(lambda v: v.decode("latin1").encode())),
    "reads_text_from_bytes": _encoding("blob", BytesEncoder(rows.check_utf8)),
    "reads_fifteen_digits": _expression("real", "CAST(printf('%.15g', {}) AS REAL)"),
    "reads_trimmed_text": _expression("text", "rtrim({})"),
    "misses_the_snapshot": _without_snapshot,
    "ignores_interrupt": _without_interrupt,
    "lacks_what_shapes_promise": _without_capabilities,
}


@pytest.fixture(params=BROKEN)
def legacy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OfSQLite]:
    BROKEN[request.param](monkeypatch)
    made = OfSQLite(tmp_path / "legacy.sqlite")
    yield made
    made.close()

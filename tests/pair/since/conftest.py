"""Fixtures of the refreshes by a marker: a database of each engine, and a table in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacy import LEGACIES, Legacy, SqliteLegacy
from tests.pair.since.rig import BY_VERSION, Stock, by_time


@pytest.fixture(params=["sqlite", "postgresql", *FAMILY])
def engine(request: pytest.FixtureRequest) -> str:
    """Return the name of an engine in `LEGACIES`; a module may have others."""
    name: str = request.param
    return name


@pytest.fixture
def legacy(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[Legacy]:
    """Yield a database of the engine."""
    made = LEGACIES[engine](request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def stock(legacy: Legacy, tmp_path: Path) -> Iterator[Stock]:
    """Yield the table on every engine, with a marker of times."""
    made = Stock(legacy, tmp_path / "pair", by_time(legacy))
    yield made
    made.pair.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of the database of `local`."""
    return tmp_path / "erp.db"


@pytest.fixture
def local(file: Path, tmp_path: Path) -> Iterator[Stock]:
    """Yield the table on SQLite alone, with a marker of versions."""
    made = Stock(SqliteLegacy(file), tmp_path / "pair", BY_VERSION)
    yield made
    made.pair.stop()
    made.legacy.close()  # not always the first one: a test may put another file in its place

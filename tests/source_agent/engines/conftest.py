"""A new database of each server, as the tests of one engine see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS, OfMariaDB, OfPostgreSQL
from tests.harness.servers import PostgreSQL


@pytest.fixture
def pg(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


@pytest.fixture(params=FAMILY)
def maria(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OfMariaDB]:
    """MariaDB, and MySQL for what is true of both; `mariadb_alone` marks what is not."""
    made = KINDS[request.param](request, tmp_path)
    assert isinstance(made, OfMariaDB)
    yield made
    made.close()

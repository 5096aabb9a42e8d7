"""A new database of each server, as the tests of one engine see it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.legacies import OfMariaDB, OfPostgreSQL
from tests.harness.servers import MariaDB, PostgreSQL


@pytest.fixture
def pg(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


@pytest.fixture
def maria(mariadb: MariaDB) -> Iterator[OfMariaDB]:
    made = OfMariaDB(mariadb)
    yield made
    made.close()

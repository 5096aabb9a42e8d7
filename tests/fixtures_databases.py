"""One real server of each engine per session, and SQLite files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.absent import absent
from tests.servers import MariaDB, PostgreSQL, find_program


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    missing = [p for p in ("mariadbd", "mariadb-install-db") if find_program(p) is None]
    if missing:
        absent("MARIADB SERVER", f"{' and '.join(missing)} not installed", is_required_in_ci=True)
    with MariaDB() as server:
        yield server


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Callable[[str], Path]:
    """Where a database of a given name is or will be; a new folder for each test."""

    def path(name: str = "legacy") -> Path:
        return tmp_path / f"{name}.sqlite"

    return path

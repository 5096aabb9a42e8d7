"""Which URLs name an engine, what is said of those that do not, which releases the tests run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from driftline import errors

from source_agent.engines.interface import Limits
from source_agent.engines.registry import TESTED, connect, untested
from tests.harness.server_versions import PACKAGES

# What `tests/setup` installs: no package of another release.
ENGINES = {name.lower() for name in TESTED}
USUAL = {"postgresql": "18", "mariadb": "10.11", "firebird": "3.0"}


def test_databases_that_are_not_there(tmp_path: Path) -> None:
    for url in (
        "postgresql://u@127.0.0.1:1/d",
        "mariadb://u@127.0.0.1:1/d",
        f"sqlite:///{tmp_path}/none.sqlite",
    ):
        with pytest.raises(errors.DatabaseUnavailable) as caught:
            connect(url, "secret", Limits(connect_s=2)).open()
        assert "secret" not in str(caught.value)


def test_urls() -> None:
    for url in ("oracle://u@h/d", "nonsense", "sqlite://", "mariadb://h", "mysql+mysqldb://u@h/d"):
        with pytest.raises(errors.ConfigurationError):
            connect(url, None, Limits())
    names = {"postgresql": "postgresql", "mysql+pymysql": "mysql", "mysql": "mysql"}
    for scheme, name in names.items():
        assert connect(f"{scheme}://u@h/d", None, Limits()).name == name


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'driftline\[postgresql\]'"):
        connect("postgresql://u@h/d", None, Limits())


def test_every_server_that_the_tests_run_is_known() -> None:
    run = [(version.engine, version.number) for version in PACKAGES if version.engine in ENGINES]
    for engine, number in [*run, *USUAL.items()]:
        (product,) = (name for name in TESTED if name.lower() == engine)
        assert any(one.startswith(number) for one in TESTED[product]), (engine, number)


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("MySQL 9.7.4", ""),
        ("PostgreSQL 18.1", ""),
        ("SQLite 3.40", ""),
        ("", ""),
        ("MySQL 8.0.36", "MySQL 9.7"),
        ("MariaDB 10.1.48", "MariaDB 10.11, 11.8"),
        ("PostgreSQL 19beta1", "14, 15, 16, 17, 18"),
    ],
)
def test_a_server_that_no_test_runs_is_told(release: str, said: str) -> None:
    assert said in untested(release)
    assert bool(said) == bool(untested(release))

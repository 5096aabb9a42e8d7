"""What `check` says of the release of a server is what the tests run."""

import pytest

from source_agent.engines.registry import RUN, not_run
from tests.harness.server_versions import PACKAGES

# What `tests/setup` installs: no package of another release.
USUAL = {"postgresql": "18", "mariadb": "10.11", "firebird": "3.0"}


def test_every_server_that_the_tests_run_is_known() -> None:
    run = [(version.engine, version.number) for version in PACKAGES if version.engine != "sqlite"]
    for engine, number in [*run, *USUAL.items()]:
        (product,) = (name for name in RUN if name.lower() == engine)
        assert any(one.startswith(number) for one in RUN[product]), (engine, number)


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
    assert said in not_run(release)
    assert bool(said) == bool(not_run(release))

"""What every test may ask for; the fixtures themselves live in files by topic."""

from __future__ import annotations

import os
import random

import pytest
from driftline import digests
from hypothesis import HealthCheck, settings

from tests.harness.examples import DEFAULT_EXAMPLES
from warehouse_agent.refresh import prepare

pytest_plugins = [
    "tests.fixtures.databases",
    "tests.fixtures.disk",
    "tests.fixtures.spark",
    "tests.fixtures.wan",
]

# No deadline and no health check for slowness: shared machines stall, and a stall is no bug.
# A failure prints its blob (`@reproduce_failure`), so no profile needs to be deterministic.
settings.register_profile(
    "default",
    max_examples=DEFAULT_EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
_DEFAULT = settings.get_profile("default")
settings.register_profile("ci", _DEFAULT, max_examples=100, database=None)
settings.register_profile("soak", _DEFAULT, max_examples=2000)
settings.register_profile("quick", _DEFAULT, max_examples=5, database=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

_MARKED_BY_FIXTURE = {
    "spark": "spark",
    "postgresql": "postgresql",
    "mariadb": "mariadb",
    "wan_available": "wan",
}


_MARKED_BY_PARAMETER = {"postgres": "postgresql", "mariadb": "mariadb", "myisam": "mariadb"}


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the expensive fixtures they use, and group them by file for parallel runs.

    `./tests/run --quick` relies on the markers, whether a test's author thought of them or not. The
    tests of a file share its fixtures, so one process runs them, unless they name another group.
    """
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED_BY_FIXTURE:
                item.add_marker(_MARKED_BY_FIXTURE[fixture])
        for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
            for engine, marker in _MARKED_BY_PARAMETER.items():
                if isinstance(value, str) and value.startswith(engine):
                    item.add_marker(marker)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Refuse what `./tests/run --quick` must not need: the test lacks a marker."""
    if settings.get_current_profile_name() == "quick" and fixturedef.argname in _MARKED_BY_FIXTURE:
        pytest.fail(f"mark this test: {_MARKED_BY_FIXTURE[fixturedef.argname]}", pytrace=False)


class _Drawn:
    """The randomness of salts and fragment keys, from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def randbits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test draws its own salts and fragment keys, the same ones every time, wherever
    the test lies. Whether cells of a
    small sketch suffice is chance: seven of a thousand take one more round trip, and a test that
    counts them would fail as often. Property tests draw salts of their own; the soak any."""
    if settings.get_current_profile_name() != "soak":
        vars(digests)["secrets"] = vars(prepare)["secrets"] = _Drawn(item.name)

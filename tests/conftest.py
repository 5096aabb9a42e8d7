"""What every test may ask for; the fixtures themselves live in files by topic."""

from __future__ import annotations

import gc
import os
import random
import signal

import pytest
from driftline.rows import digests
from hypothesis import HealthCheck, settings

from tests.harness.examples import EXAMPLES_OF_A_RUN
from warehouse_agent.refresh import prepare

pytest_plugins = [
    "tests.fixtures.clock",
    "tests.fixtures.cluster",
    "tests.fixtures.databases",
    "tests.fixtures.disk",
    "tests.fixtures.installation",
    "tests.fixtures.object_stores",
    "tests.fixtures.selection",
    "tests.fixtures.spark",
    "tests.fixtures.starts",
    "tests.fixtures.wan",
]

# No deadline and no health check for slowness: shared machines stall, and a stall is no bug.
# A failure prints its blob (`@reproduce_failure`), so no profile needs to be deterministic: runs
# draw other examples each time, and many short ones find more than a long one that nobody makes.
settings.register_profile(
    "default",
    max_examples=EXAMPLES_OF_A_RUN,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
_DEFAULT = settings.get_profile("default")
settings.register_profile("ci", _DEFAULT, database=None)
settings.register_profile("soak", _DEFAULT, max_examples=2000)
settings.register_profile("quick", _DEFAULT, max_examples=5, database=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


GC_OBJECTS = 10_000  # between two collections of what is new; Python's 700 are for small heaps


class _Drawn:
    """The randomness of salts and fragment keys, from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def randbits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def pytest_configure() -> None:
    """Let Ctrl-C interrupt, here and in processes that tests start, though a shell that runs us in
    the background ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the collector of garbage the modules and tests of the whole tree, which stay: a tenth
    of the time of tests in this process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, *gc.get_threshold()[1:])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test draws its own salts and fragment keys, the same ones every time, wherever
    the test lies. Whether cells of a
    small sketch suffice is chance: seven of a thousand take one more round trip, and a test that
    counts them would fail as often. Property tests draw salts of their own; the soak any."""
    if settings.get_current_profile_name() != "soak":
        vars(digests)["secrets"] = vars(prepare)["secrets"] = _Drawn(item.name)

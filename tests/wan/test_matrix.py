"""Every way to keep a relation equal, on every engine, over every kind of line.

Load, refresh of changed rows, a refresh that finds nothing, and a probe without a scan; after each
the published rows are compared with the source's. All packets' faults are drawn from one seed:
`WAN_SEED=… ./tests/run 'tests/wan/test_matrix.py::…'` replays a failure, which prints both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.harness.family import FAMILY
from tests.harness.legacy import Legacy, PostgresLegacy, SqliteLegacy, of_family
from tests.wan.site import SCENARIOS, Site, profiles

SEED = int(os.environ.get("WAN_SEED", "6"))
PROFILES = profiles(SEED)

pytestmark = [
    pytest.mark.wan,
    pytest.mark.usefixtures("wan_available"),
]


def _sqlite(request: pytest.FixtureRequest) -> Legacy:
    folder: Path = request.getfixturevalue("tmp_path")
    return SqliteLegacy(folder / "erp.db")


# Over sockets of files: the source's namespace has no other way to a server outside of it.
def _postgresql(request: pytest.FixtureRequest) -> Legacy:
    server = request.getfixturevalue("postgresql")
    legacy = PostgresLegacy(server)
    legacy.url, legacy.password = server.url(legacy.login, legacy.database), None
    return legacy


def _family(name: str, request: pytest.FixtureRequest) -> Legacy:
    server = request.getfixturevalue(name)
    legacy = of_family(server)
    legacy.url = server.url(legacy.login, legacy.database)
    return legacy


ENGINES: dict[str, Callable[[pytest.FixtureRequest], Legacy]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    **{name: partial(_family, name) for name in FAMILY},
}
# What every run tries, without a view: that needs Spark, whose start takes longer than all else.
DEFAULT = {("lossy", "postgresql")}


def _case(profile: str, engine: str) -> object:
    marks = [] if (profile, engine) in DEFAULT else [pytest.mark.soak]
    return pytest.param(profile, engine, marks=marks, id=f"{profile}-{engine}")


@contextmanager
def _replayable(request: pytest.FixtureRequest, profile: str, *, is_soak: bool) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        test = f"{'--soak ' if is_soak else ''}'tests/wan/test_matrix.py::{request.node.name}'"
        error.add_note(f"replay: WAN_SEED={SEED} ./tests/run {test}  # {PROFILES[profile]}")
        raise


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("profile", "engine"), [_case(profile, engine) for profile in PROFILES for engine in ENGINES]
)
def test_all_is_equal_over(
    profile: str, engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    is_soak = (profile, engine) not in DEFAULT
    legacy = ENGINES[engine](request)
    with (
        _replayable(request, profile, is_soak=is_soak),
        PROFILES[profile].link() as link,
        Site(tmp_path, link, legacy, seed=SEED, with_view=is_soak) as site,
    ):
        site.converge()
        site.edit()
        reports = site.converge()
        done = {r["name"]: r for r in reports if r["error"] is None}
        assert {s.name for s in SCENARIOS} <= done.keys()
        assert done["groups"]["method"] == "group"
        assert done["whole"]["method"] == "full"
        assert (done["since"]["method"], done["since"]["proof"]) == ("since", "keys")
        assert done["tiles"]["tiles"] > 1
        assert sum(r["proof"] == "part" for r in reports if r["name"] == "parts") >= 1
        versions = {name: report["version"] for name, report in done.items()}
        for report in site.converge():
            if report["error"] is None and report["name"] != "parts":
                assert report["version"] == versions[report["name"]], "nothing had changed"
        _probe(site)
        counted = link.counters()
        assert (counted.dropped_packets > 0) == (profile in {"lossy", "flapping", "worst"})
    legacy.close()


def _probe(site: Site) -> None:
    """Ask what changed, without a scan; a line that fails is asked again."""
    for _ in range(5):
        code, found = site.command("status", "--ask", "--json")
        told = {status["name"]: status["activity"] for status in found}
        if code == 0 and told.get("sketch") and told.get("dump"):
            break
    else:
        raise AssertionError((code, found))
    assert told["sketch"]["text"]
    assert told["dump"]["state"] == "unknown", "a folder of files counts nothing"

"""Each server version that the documents name passes a part of the suite; all of it in the soak.

A process loads one client library of Firebird, so each version has a process of its own, whose
fixtures the switch points at that version (`tests.harness.server_versions`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

import pytest

from tests import ROOT
from tests.harness.absent import absent, could_be_installed
from tests.harness.pair import environment
from tests.harness.server_versions import SWITCH, NotToBeHad, sqlite_library

# What runs in every run; the usual versions (PostgreSQL 18, Firebird 3 and the machine's MariaDB)
# have the whole suite there.
VERSIONS: Final = [
    "postgresql=14", "postgresql=15", "postgresql=17", "mariadb=11.8", "firebird=5",
]  # fmt: skip
SOAK: Final = [*VERSIONS, "postgresql=16", "postgresql=18", "firebird=4", "sqlite=3.54"]
USUAL: Final = ["postgresql=18", "mariadb=10.11", "mysql=9.7", "firebird=3", "sqlite=3.40"]
PAGES: Final = ("docs/guarantees.md", "README.md")
PARTS: Final = {
    "postgresql": (
        "tests/conformance/test_markers.py",
        "tests/conformance/test_engines.py",
        "tests/source_agent/engines/test_xmin.py",
        "tests/pair/since/test_postgresql.py",
        "tests/source_agent/engines/rights/test_postgresql.py",
    ),
    "mariadb": (
        "tests/conformance/test_markers.py",
        "tests/conformance/test_engines.py",
        "tests/source_agent/engines/test_versioned.py",
        "tests/source_agent/engines/test_mariadb_warnings.py",
        "tests/pair/refresh/test_every_engine.py",
        "tests/source_agent/engines/rights/test_mysql_family.py",
    ),
    "firebird": (
        "tests/source_agent/engines/test_firebird.py",
        "tests/source_agent/engines/test_firebird_zones.py",
        "tests/source_agent/engines/rights/test_firebird.py",
    ),
    "sqlite": (
        "tests/conformance/test_markers.py",
        "tests/conformance/test_engines.py",
        "tests/source_agent/engines/test_sqlite.py",
        "tests/pair/refresh/test_every_engine.py",
    ),
}
# "mark" alone is in every parametrized test: its function has a `pytestmark`.
_MARKS: Final = "marker or _mark or marks"
SELECTED: Final = {
    "postgresql": f"postgresql and ({_MARKS} or exact or described or snapshot or cannot_write"
    " or each_predefined or script_grants or (right and (SUPERUSER or SELECT or setting)))",
    "mariadb": f"mariadb and ({_MARKS} or exact or described or snapshot or cannot_write"
    " or warnings or versioned or load_refresh or each_privilege or script_grants"
    " or (right and PUBLIC))",
    "sqlite": "lite",
    "firebird": "exact or refused or snapshot or refreshed or was_written or described or zones"
    " or granted_login or rights",
}
_OF_EACH: Final = ("tests/conformance", "tests/source_agent/engines", "tests/pair/refresh")
WHOLE: Final = {
    "postgresql": (*_OF_EACH, "tests/pair/since"),
    "mariadb": _OF_EACH,
    "firebird": _OF_EACH,
    "sqlite": _OF_EACH,
}
_PASSED: Final = re.compile(r"(\d+) passed")


def switched(server: str) -> dict[str, str]:
    """Return the environment in which a version takes the place of the usual one."""
    engine, _, number = server.partition("=")
    if engine != "sqlite":
        return {SWITCH: server}
    try:
        loaded = {"LD_PRELOAD": str(sqlite_library(number))}
    except NotToBeHad as error:
        absent(server.upper(), str(error), is_required_in_ci=could_be_installed())
    asked = [sys.executable, "-c", "import sqlite3; print(sqlite3.sqlite_version)"]
    found = subprocess.run(
        asked, env=os.environ | loaded, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(number), found
    return loaded


def run(server: str, *arguments: str) -> str:
    """Run tests with a version of a server. Returns the summary."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment() | switched(server) | {"CI": os.environ.get("CI", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    if re.search("NO (POSTGRESQL|MARIADB|FIREBIRD)", done.stdout):
        absent(server.upper(), done.stdout[-2000:], is_required_in_ci=could_be_installed())
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_the_versions_that_are_run_and_no_others(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (said,) = [
        line for line in text.splitlines() if "MariaDB 10.11" in line and "SQLite 3." in line
    ]
    whole = r"([0-9]+)(?:\.0)? to ([0-9]+)(?:\.0)?"  # such as 3.0 to 5.0
    said = re.sub(whole, lambda m: ", ".join(map(str, range(int(m[1]), int(m[2]) + 1))), said)
    number = r"[0-9][0-9.]*[0-9]|[0-9]"
    listed = (
        rf"(PostgreSQL|MariaDB|MySQL|Firebird|SQLite) ((?:{number})(?:(?:, | and )(?:{number}))*)"
    )
    named = {
        f"{engine.lower()}={one.removesuffix('.0')}"
        for engine, numbers in re.findall(listed, said)
        for one in re.split(", | and ", numbers)
    }
    assert named == {*USUAL, *SOAK}


@pytest.mark.starts
@pytest.mark.parametrize("server", VERSIONS)
def test_a_part_of_the_suite_passes(server: str) -> None:
    engine = server.partition("=")[0]
    said = run(server, *PARTS[engine], "-k", SELECTED[engine], "-m", "not soak")
    found = _PASSED.search(said)
    assert found is not None, said
    assert int(found[1]) >= 20, said


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("server", SOAK)
def test_the_whole_suite_passes(server: str) -> None:
    engine = server.partition("=")[0]
    every = {"postgresql": "postgresql or xmin", "sqlite": "lite"}
    chosen = every.get(engine, engine)
    this = "--ignore=tests/conformance/test_server_versions.py"
    said = run(server, *WHOLE[engine], this, "-k", chosen, "-m", "not soak")
    assert _PASSED.search(said) is not None, said


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("server", SOAK)
def test_expressions_differ_where_it_is_said(server: str) -> None:
    """The known differences are by release."""
    chosen = f"all and {server.partition('=')[0]}"
    said = run(server, "tests/conformance/test_expressions.py", "-k", chosen, "-m", "soak")
    assert _PASSED.search(said) is not None, said

"""What went wrong is said by its cause: the table of conditions in docs/errors.md, one by one.

Each condition is made between a real source agent with mutual TLS and the warehouse's own code. Its
row says the code, the exit code, and whether `driftline refresh` tries it again by itself. When it
is over, the next refresh converges, and no session is left in the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import BY_CODE

from tests import ROOT
from tests.conditions import connection as causes_line
from tests.conditions import database as causes_database
from tests.conditions import warehouse as causes_warehouse
from tests.conditions.conditions import CAUSES, Bench, Cause
from tests.faults import test_stderr as test_noise
from tests.fixtures.databases import require_mariadb
from tests.harness.mysql_server import MySQL
from tests.harness.servers import MariaDB, PostgreSQL

pytestmark = pytest.mark.slow  # each cause starts or stops a process, or waits for a deadline

assert causes_database.__doc__
assert causes_line.__doc__
assert causes_warehouse.__doc__

# Rows whose test is another, for it ends the JVM that the tests here share.
ELSEWHERE = {
    "the Java process of Spark is killed": (
        ("SPARK", "75", "yes"),
        test_noise.test_a_killed_jvm_is_started_again,
    ),
}

# Codes of what somebody must write otherwise, in a file or in a certificate.
BY_HAND = {"CONFIGURATION", "UNAUTHENTICATED"}

_ROW = re.compile(r"^\| ([A-Z_]+) \| (\d+) \| (yes|no) \| ([^|`]+?) \|$", re.M)


@pytest.fixture(scope="module")
def own_postgresql() -> Iterator[PostgreSQL]:
    """A server that a condition may crash."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaDB]:
    """A server that a condition may stop."""
    require_mariadb()
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="module")
def own_mysql(mysql: MySQL) -> Iterator[MySQL]:
    """A server that a condition may stop; the other one says so where there is none."""
    del mysql
    with MySQL() as server:
        yield server


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> Bench:
    return Bench(request, tmp_path, engine)


@pytest.mark.parametrize(
    ("cause", "engine"),
    [
        pytest.param(cause, engine, id=" of ".join(filter(None, (cause.condition, engine))))
        for cause in CAUSES
        for engine in cause.engines or ("",)
    ],
)
def test_the_cause_is_said(cause: Cause, bench: Bench) -> None:
    with cause.provoked(bench) as pair:
        found = pair.attempt()
    assert bench.has_converged is (cause.code not in BY_HAND)
    error = found.error
    assert (error["code"], error["exit_code"]) == (cause.code, cause.exit), error
    assert found.was_retried is cause.is_retried, error
    assert error["safe_to_retry"] is BY_CODE[cause.code].is_retryable
    text = f"{error['where']}: {error['message']} {error['remedy']}"
    assert error["remedy"]
    for words in cause.says:
        assert words in text, text
    assert "report it" not in text
    assert "\n" not in text
    for noise in ("Traceback", "  at ", "\tat ", "_ssl.c", "SSL_ERROR"):
        assert noise not in text


def test_the_table_in_the_docs_is_what_is_tested() -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    section = text.partition("## Causes\n")[2].partition("\n## ")[0]
    rows = {
        condition: (code, exit_code, retried)
        for code, exit_code, retried, conditions in _ROW.findall(section)
        for condition in conditions.split("; ")
    }
    assert rows == {
        cause.condition: (cause.code, str(cause.exit), "yes" if cause.is_retried else "no")
        for cause in CAUSES
    } | {condition: row for condition, (row, _) in ELSEWHERE.items()}

"""A driver that raises anything, at any step, is told by its cause: never as a mistake of ours.

Nor do its words cross the border. `DRIVEN_SOAK` tries of SQLite, and of the servers' drivers
fewer, run under --soak.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline.errors import DatabaseRefused, DriftlineError, InternalError

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.shapes import Relation
from tests.conformance.border_cases import SECRET
from tests.conformance.driver_failures import chosen, failing, raisers
from tests.harness.family import spelled_as
from tests.harness.legacies import KINDS

TRIES, DRIVEN_SOAK = {"sqlite": 400, "firebird": 60, "mariadb": 60, "postgresql": 30}, 20_000
SERVER_SOAK = 2_000  # of each server
SEED = 20261129

# A driver also fails when a connection that failed is freed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=[*KINDS, "firebird"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    if request.param == "firebird":
        server = request.getfixturevalue("firebird")
        from tests.harness.legacy_firebird import OfFirebird

        made: Legacy = OfFirebird(tmp_path, server)
    else:
        made = KINDS[request.param](request, tmp_path)
    made.run("CREATE TABLE ITEMS (ID INT NOT NULL PRIMARY KEY, NOTE VARCHAR(9))")
    made.run("INSERT INTO ITEMS VALUES (1, 'a')", "INSERT INTO ITEMS VALUES (2, 'b')")
    yield made
    made.close()


def _read(legacy: Legacy, name: str) -> list[bytes]:
    engine = legacy.connect()
    relation = Relation("items", table=name)
    with closing(engine.open([relation])) as session:
        shape = session.describe(relation)
        return [row for rows in session.scan(shape) for row in rows]


def _error(legacy: Legacy, name: str) -> Exception | None:
    try:
        _read(legacy, name)
    except Exception as error:
        return error
    return None


def _try(legacy: Legacy, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    name = "items" if legacy.name == "postgresql" else "ITEMS"
    rng = random.Random(SEED)
    fault = failing(spelled_as(legacy.name), monkeypatch)
    assert len(_read(legacy, name)) == 2
    steps, errors, seen = fault.calls, raisers(spelled_as(legacy.name)), set[str]()
    for number in range(tries):
        at, error = chosen(rng, steps, errors)
        said = f"try {number}: step {at} of {steps}, {error()!r}"
        with fault.armed(at, error):
            found = _error(legacy, name)
        assert found is None or isinstance(found, DriftlineError), (said, found)
        assert not isinstance(found, InternalError), said
        if found is not None:
            crossed = found.crossing("0", "items")
            assert SECRET not in " ".join((str(crossed), *crossed.details.values())), said
            seen.add(found.code)
    assert len(seen) > 1
    del found
    gc.collect()  # here, and not in another test


def test_a_driver_that_fails(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    _try(legacy, monkeypatch, TRIES[spelled_as(legacy.name)])


@pytest.mark.firebird
def test_a_transaction_that_a_trigger_refuses(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("firebird")
    from tests.harness.legacy_firebird import OfFirebird

    legacy = OfFirebird(tmp_path, server)
    legacy.run(
        f"CREATE EXCEPTION NO_ENTRY '{SECRET}'",
        # The owner, who writes, gets in.
        "CREATE TRIGGER GUARD ON TRANSACTION START AS BEGIN"
        " IF (RDB$GET_CONTEXT('SYSTEM', 'READ_ONLY') = 'TRUE') THEN EXCEPTION NO_ENTRY; END",
    )
    with pytest.raises(DatabaseRefused, match="does not begin a transaction") as caught:
        legacy.connect().open()
    assert SECRET in caught.value.message
    assert SECRET not in str(caught.value.crossing("0", "items"))
    legacy.run("DROP TRIGGER GUARD")
    legacy.connect().open().close()
    legacy.close()


@pytest.mark.soak
def test_a_driver_that_fails_often(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    _try(legacy, monkeypatch, DRIVEN_SOAK if legacy.name == "sqlite" else SERVER_SOAK)

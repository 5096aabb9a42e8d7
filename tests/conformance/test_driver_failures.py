"""A driver that raises anything, at any step, is told by its cause: never as a mistake of ours.

Nor do its words cross the border. More than 100,000 tries run under --soak.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
from driftline.errors import DatabaseRefused, DriftlineError, InternalError
from driftline.rows.key_order import KeyRange

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    flat,
    key_hashes,
    markers_of,
    rows_between,
    rows_by_keys,
    split_of,
)
from source_agent.engines.interface import Engine, Session
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation, Shape
from tests.conformance.border_cases import SECRET
from tests.conformance.driver_failures import Failing, chosen, failing, raisers
from tests.harness.family import spelled_as
from tests.harness.legacies import KINDS
from tests.harness.legacy_generic import GenericOverPostgreSQL, GenericOverSQLite

# Of each engine in every run, and in the soak.
TRIES: Final = {
    "sqlite": (400, 60_000),
    "generic over sqlite": (100, 20_000),
    "generic over postgresql": (20, 4_000),
    "postgresql": (30, 6_000),
    "mariadb": (60, 6_000),
    "mysql": (60, 6_000),
    "firebird": (60, 6_000),
}
assert sum(many for _, many in TRIES.values()) > 100_000
SEED = 20261129
GENERIC: Final[dict[str, Callable[[pytest.FixtureRequest, Path], Legacy]]] = {
    "generic over sqlite": lambda _, folder: GenericOverSQLite(folder / "generic.sqlite"),
    "generic over postgresql": lambda request, _: GenericOverPostgreSQL(
        request.getfixturevalue("postgresql")
    ),
}
Use: TypeAlias = Callable[[Engine, Relation], object]

# A driver also fails when a connection that failed is freed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(params=[*KINDS, *GENERIC, "firebird"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    if request.param == "firebird":
        server = request.getfixturevalue("firebird")
        from tests.harness.legacy_firebird import OfFirebird

        made: Legacy = OfFirebird(tmp_path, server)
    else:
        made = (KINDS | GENERIC)[request.param](request, tmp_path)
    made.run("CREATE TABLE ITEMS (ID INT NOT NULL PRIMARY KEY, NOTE VARCHAR(9))")
    made.run("INSERT INTO ITEMS VALUES (1, 'a')", "INSERT INTO ITEMS VALUES (2, 'b')")
    yield made
    made.close()


def _in_session(use: Callable[[Any, Shape], object]) -> Use:
    """Return a use of a session that has described the relation."""

    def used(engine: Engine, relation: Relation) -> None:
        with closing(engine.open([relation], [relation])) as session:
            use(session, session.describe(relation))

    return used


def _split(session: Session, shape: Shape) -> None:
    if (split := split_of(session, shape, rows_max=1)) is not None:
        flat(row for part in range(split.parts) for row in split.read(part))
        split.finish()


def _referenced(session: Session, shape: Shape) -> None:
    if (references := session.capabilities.references) is not None:
        references(shape, [shape.relation])


def _marked(session: Session, shape: Shape) -> None:
    markers_of(session).identity()
    if (running := session.capabilities.running) is not None:
        running()
    mark = markers_of(session).mark(shape)
    markers_of(session).marked_read(shape)
    flat(markers_of(session).read_marked(shape, mark))


RANGE: Final = np.array([1], np.int64), np.array([1], np.int64)
# What the agent, `check` and `init` ask of a database: each a series of calls of a driver.
USES: Final[dict[str, Use]] = {
    "scan": _in_session(lambda session, shape: flat(session.scan(shape, ordered=True))),
    "key": _in_session(lambda session, shape: flat(rows_by_keys(session, shape, [("1",)]))),
    "keys": _in_session(
        lambda session, shape: flat(rows_between(session, shape, KeyRange(("0",), ("2",))))
    ),
    "ranges": _in_session(lambda session, shape: flat(session.read_ranges(shape, *RANGE))),
    "hashes": _in_session(lambda session, shape: key_hashes(session, shape, 7)),
    "references": _in_session(_referenced),
    "limits": _in_session(lambda session, _: session.time_limits),
    "parts": _in_session(_split),
    "mark": _in_session(_marked),
    "rights": lambda engine, relation: engine.privileges([relation]),
    "cost": lambda engine, relation: engine.scan_cost(_described(engine, relation)),
    "notes": lambda engine, relation: engine.warnings(_described(engine, relation)),
    "listed": lambda engine, _: engine.listed(),
}


# What an engine cannot be asked for: Firebird's order of keys is not that of bytes.
LACKED: Final = {
    "firebird": ("key", "keys", "mark"),
    **dict.fromkeys(GENERIC, ("key", "keys", "mark")),
}
MARKERS: Final = {"postgresql": Marker(""), "mariadb": Marker("ID"), "sqlite": Marker("ID")}


def _described(engine: Engine, relation: Relation) -> Shape:
    with closing(engine.open()) as session:
        return session.describe(relation)


def _error(legacy: Legacy, use: str, relation: Relation) -> Exception | None:
    marker = MARKERS.get(spelled_as(legacy.name)) if use == "mark" else None
    try:
        USES[use](legacy.connect(), replace(relation, marker=marker))
    except Exception as error:
        return error
    return None


def _steps(legacy: Legacy, relation: Relation, fault: Failing) -> dict[str, int]:
    """Return how many calls of the driver each use makes."""
    found = {}
    lacked = LACKED.get(spelled_as(legacy.name), ())
    for use in [use for use in USES if use not in lacked]:
        fault.calls = 0
        error = _error(legacy, use, relation)
        assert error is None, (use, error)
        if fault.calls:  # SQLite has no logins
            found[use] = fault.calls
    return found


def _try(legacy: Legacy, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    driver = spelled_as(legacy.name).removeprefix("generic over ")
    relation = Relation("items", table="items" if driver == "postgresql" else "ITEMS")
    rng = random.Random(SEED)
    fault = failing(driver, monkeypatch)
    steps, errors = _steps(legacy, relation, fault), raisers(driver)
    seen = set[str]()
    for number in range(tries):
        use = rng.choice(list(steps))
        faults = chosen(rng, steps[use], errors)
        with fault.armed(faults):
            found = _error(legacy, use, relation)
        said = f"try {number}: {use} of {steps[use]} calls, {', then '.join(map(str, faults))}"
        if isinstance(found, InternalError) or not isinstance(found, DriftlineError | None):
            raise AssertionError(said) from found
        if found is not None:
            crossed = found.crossing("0", "items")
            assert SECRET not in " ".join((str(crossed), *crossed.details.values())), said
            seen.add(found.code)
    assert len(seen) > 1
    del found
    gc.collect()  # here, and not in another test


def test_a_driver_that_fails(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    _try(legacy, monkeypatch, TRIES[legacy.name][0])


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
@pytest.mark.timeout(3600)
def test_a_driver_that_fails_often(legacy: Legacy, monkeypatch: pytest.MonkeyPatch) -> None:
    _try(legacy, monkeypatch, TRIES[legacy.name][1])

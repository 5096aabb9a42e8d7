"""What an engine lacks it must say: the checks that run in the place of tests.

A test that needs one is marked with `needs`. If the engine declares that it lacks it, the check of
this capability runs in the test's place and under its name. So no engine passes by saying nothing:
what is missing is refused in `describe`, is false in the `Shape`, or is told to the DBA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, TypeVar

import pytest
from driftline.errors import ConfigurationError

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.relations.shapes import Consistency, Relation

T = TypeVar("T", bound=Callable[..., None])
_TABLE: Final = 'CREATE TABLE "lacking" ("id" BIGINT NOT NULL PRIMARY KEY, "name" VARCHAR(9))'
_RELATION: Final = Relation("lacking", table="lacking", key=("id",))


def needs(*wanted: Capability) -> Callable[[T], T]:
    """Return a decorator of a test that needs capabilities; its fixture is `legacy`.

    If some are lacking, their checks run instead of the test.
    """

    def decorate(test: T) -> T:
        @functools.wraps(test)
        def checked(*args: Any, legacy: Legacy, **kwargs: Any) -> None:
            lacking = [capability for capability in wanted if capability in legacy.lacks]
            if not lacking:
                test(*args, legacy=legacy, **kwargs)
                return
            legacy.run(legacy.sql(_TABLE))
            legacy.insert("lacking", [(1, "a"), (2, "b")])
            for capability in lacking:
                _CHECKS[capability](legacy)

        checked.lacking_is_checked = wanted  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def _no_sql(legacy: Legacy) -> None:
    where = legacy.sql('"id" > 1')
    with closing(legacy.connect().open()) as session, pytest.raises(ConfigurationError):
        session.describe(Relation("w", table="lacking", key=("id",), where=where))


def _no_queries(legacy: Legacy) -> None:
    query = legacy.sql('SELECT "id" FROM "lacking"')
    with closing(legacy.connect().open()) as session, pytest.raises(ConfigurationError):
        session.describe(Relation("q", query=query, key=("id",)))


def _no_keys(legacy: Legacy) -> None:
    with closing(legacy.connect().open()) as session:
        assert not legacy.described(session, _RELATION).vouched, "nothing vouches for the key"


def _no_not_null(legacy: Legacy) -> None:
    with closing(legacy.connect().open()) as session:
        shape = legacy.described(session, _RELATION)
    assert all(column.nullable for column in shape.recipe.columns), "nothing is promised"


def _no_order(legacy: Legacy) -> None:
    with closing(legacy.connect().open()) as session:
        shape = legacy.described(session, _RELATION)
    assert not shape.ordered
    assert not shape.indexed
    assert shape.unordered, "it says why"


def _no_snapshot(legacy: Legacy) -> None:
    with closing(legacy.connect().open()) as session:
        shape = legacy.described(session, _RELATION)
        assert sum(map(len, session.scan(shape))) == 2
        assert session.snapshot.consistency is Consistency.FUZZY


def _may_write(legacy: Legacy) -> None:
    # The DBA is told that the login decides.
    told = legacy.connect().privileges([_RELATION])
    assert any(p.excess or p.is_unknown for p in told), told


def _no_time_limit(legacy: Legacy) -> None:
    # `check` shows the limits in force: none is claimed.
    with closing(legacy.connect(statement_s=7).open()) as session:
        assert [limit for limit in session.time_limits if not limit.is_idle] == []


def _no_templates(legacy: Legacy) -> None:
    with closing(legacy.connect().open()) as session:
        shape = legacy.described(session, _RELATION)
    texts = legacy.connect().templates([shape])
    assert not texts or any(text.startswith("--") for text in texts), "no SQL, or a comment on it"


def _no_plans(legacy: Legacy) -> None:
    # No index is claimed that nobody can see to be used: only that of a constraint.
    legacy.run(legacy.sql('CREATE TABLE "planless" ("id" BIGINT, "name" VARCHAR(9))'))
    with closing(legacy.connect().open()) as session:
        shape = legacy.described(session, Relation("p", table="planless", key=("id",)))
    assert not shape.indexed


def _no_logins(legacy: Legacy) -> None:
    script = legacy.connect().grants([_RELATION], login="somebody", connections=6)
    assert "somebody" in script, "what the DBA has to do elsewhere"


_CHECKS: Final[Mapping[Capability, Callable[[Legacy], None]]] = {
    Capability.SQL: _no_sql,
    Capability.QUERIES: _no_queries,
    Capability.KEYS: _no_keys,
    Capability.NOT_NULL: _no_not_null,
    Capability.ORDER: _no_order,
    Capability.SNAPSHOT: _no_snapshot,
    Capability.READ_ONLY: _may_write,
    Capability.READ_ONLY_CONNECTION: _may_write,
    Capability.TIME_LIMIT: _no_time_limit,
    Capability.TEMPLATES: _no_templates,
    Capability.PLANS: _no_plans,
    Capability.LOGINS: _no_logins,
}
assert set(_CHECKS) == set(Capability)

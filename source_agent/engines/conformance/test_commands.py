"""What the DBA is shown, and what she allows: SQL texts, grants, privileges, costs, limits."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

import numpy as np
import pytest
from driftline import errors
from sqlalchemy.engine import make_url

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.lacking import needs
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    ALL_KEYS,
    engine_of,
    filled,
    flat,
    rows_of,
    session_of,
)
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect, is_file
from source_agent.engines.relations.shapes import Relation


@needs(Capability.TEMPLATES, Capability.QUERIES)
def test_the_templates_cover_what_is_issued(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check every statement that reaches the driver against what `explain` prints."""
    filled(legacy, 50)
    legacy.run(legacy.sql('CREATE TABLE "loose" ("id" BIGINT, "n" INT)'))
    issued: list[str] = []
    legacy.record(monkeypatch, issued)
    engine = engine_of(legacy, statement_s=60)
    sql = legacy.sql
    where = sql('"n" > 0 AND "n" < 100 OR "n" = 100')
    relations = [
        Relation("items", table="items", where=sql('"id" > -1')),
        Relation("q", query=sql('SELECT "name" AS "k", "id" FROM "items"'), key=("k",)),
        Relation("r", query=sql('SELECT "id" AS "k", "name" FROM "items"'), key=("k",)),
        Relation("loose", table="loose", key=("id",), where=where),
    ]
    with closing(engine.open()) as session:
        shapes = [session.describe(relation) for relation in relations]
        for shape in shapes:
            flat(session.scan(shape))
        flat(session.scan(shapes[0], ordered=True))
        bound = np.array([3], np.int64)
        flat(session.read_ranges(shapes[0], bound, bound))
        for shape in shapes[2:]:
            assert not shape.vouched
            flat(session.read_ranges(shape, *ALL_KEYS))
        session.pause()
    for shape in shapes:
        engine.scan_cost(shape)
    engine.privileges(relations)
    known = {legacy.general(text) for text in engine.templates(shapes)}
    assert len(issued) > 10
    for text in issued:
        assert legacy.general(text) in known, text


def test_grants_scan_cost_and_privileges(legacy: Legacy) -> None:
    """Check the script of grants, one line of cost, and that too much is told."""
    filled(legacy, 100)
    engine = engine_of(legacy)
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    with closing(engine.open()) as session:
        shape = legacy.described(session, relation)
    script = engine.grants([relation], login="drift'line", connections=6)
    assert "items" in script or is_file(make_url(legacy.url)) or Capability.LOGINS in legacy.lacks
    assert "INSERT" not in script
    assert "\n" not in engine.scan_cost(shape)
    assert "rows" in engine.scan_cost(shape)
    told = engine.privileges([relation])
    is_unknown = Capability.LOGINS in legacy.lacks and any(p.is_unknown for p in told)
    assert is_unknown or any(p.excess for p in told), "a superuser has too much"


@needs(Capability.LOGINS)
def test_a_granted_login_reads_and_has_no_excess(legacy: Legacy) -> None:
    """Check that the script of grants is enough, and no more."""
    relation = Relation("items", table="items", key=("id",), columns=("name",))
    filled(legacy, 5)
    legacy.run(legacy.sql('CREATE TABLE "others" ("id" INT NOT NULL PRIMARY KEY, "label" INT)'))
    login = f"l{uuid4().hex[:12]}"
    script = engine_of(legacy).grants([relation], login=login, connections=6)
    url = legacy.granted(script, login)
    engine = connect(url, "pw", Limits())
    with closing(engine.open()) as session:
        assert len(rows_of(session, legacy.described(session, relation))) == 5
        table = "items" if legacy.grants_columns else "others"
        query = legacy.sql(f'SELECT "label", "id" FROM "{table}"')
        with pytest.raises(errors.DatabaseRefused, match="GRANT SELECT"):
            rows_of(session, legacy.described(session, Relation("all", query=query, key=("id",))))
    assert [p.what for p in engine.privileges([relation]) if p.excess] == []
    legacy.drop_login(login)


@needs(Capability.TIME_LIMIT, Capability.QUERIES)
def test_a_statement_may_take_its_time_and_no_longer(legacy: Legacy) -> None:
    """Check that `statement_s` ends a slow statement, and not the session."""
    filled(legacy, 3000)
    slow = (
        'SELECT count(*) AS "n" FROM "items" a, "items" b, "items" c'
        ' WHERE a."amount" + b."id" = c."id"'
    )
    where = legacy.sql('"id" < 30')  # few rows, so that a busy machine reads them in time
    few = Relation("items", table="items", where=where)
    with session_of(legacy, statement_s=1) as session:
        shape = legacy.described(session, Relation("s", query=legacy.sql(slow), key=("n",)))
        with pytest.raises(errors.DatabaseRefused, match="statement_timeout_s"):
            rows_of(session, shape)
        assert len(rows_of(session, legacy.described(session, few))) == 10

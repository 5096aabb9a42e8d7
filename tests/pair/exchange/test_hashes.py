"""Both halves of an exchange where a real PostgreSQL makes the fingerprints: any edit is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from driftline.reconciliation.ranges import uniform
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Fingerprint, Relation
from tests.harness.exchange_pair import COMPOSITE, INTEGER, Schema, Table, exchange
from tests.harness.legacies import OfPostgreSQL
from tests.harness.servers import PostgreSQL
from tests.pair.exchange.test_both_halves import FORCINGS, check, edited, patched, sketches
from warehouse_agent.planning.choice import Method

RELATION = Relation("orders", table="t", fingerprint=Fingerprint.DATABASE)
TABLES = {
    INTEGER: "CREATE TABLE t (a text, id bigint PRIMARY KEY, b bytea)",
    COMPOSITE: "CREATE TABLE t (b bytea, day bigint, a text, code text, PRIMARY KEY (code, day))",
}


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    yield made
    made.close()


def storable(table: Table) -> Table:
    """Without what PostgreSQL's text cannot hold; keys stay different."""
    return [tuple(c.replace("\0", "␀") if isinstance(c, str) else c for c in row) for row in table]


@pytest.mark.parametrize("schema", TABLES, ids=["integer", "composite"])
def test_any_edit_is_found(legacy: OfPostgreSQL, schema: Schema) -> None:
    legacy.run(TABLES[schema])
    engine = connect(legacy.url, None, Limits())
    marks = ", ".join(["%s"] * len(schema.columns))
    insert = f"INSERT INTO t ({', '.join(schema.columns)}) VALUES ({marks})"

    @given(data=st.data())
    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    def found(data: st.DataObject) -> None:
        ours, theirs = map(storable, data.draw(edited(schema)))
        method = data.draw(st.sampled_from([None, *Method]))
        sketch = data.draw(st.none() | sketches(schema, ours)) if ours else None
        partition = uniform(1 << data.draw(st.integers(1, 12)))
        with legacy.server.superuser(legacy.database) as connection, connection.cursor() as cursor:
            cursor.execute("TRUNCATE t")
            cursor.executemany(insert, theirs)
        with (
            patched(data.draw(st.sampled_from(list(FORCINGS)))),
            closing(engine.open()) as session,
        ):
            result = exchange(
                session, RELATION, ours, partition=partition, forced=method, sketch=sketch
            )
            assert result.pair.is_done
        assert result.ours.recipe.fingerprint_version == 2
        check(result, theirs)

    found()

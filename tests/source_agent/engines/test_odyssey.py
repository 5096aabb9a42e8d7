"""PostgreSQL behind Odyssey: what `test_pooler` says of PgBouncer, where both have the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from driftline.errors import DatabaseRefused

from source_agent.engines.conformance.reads import read
from tests.harness.absent import absent
from tests.harness.legacies import OfPostgreSQL
from tests.harness.odyssey import Odyssey
from tests.harness.server_versions import NotToBeHad, obtain
from tests.source_agent.engines.test_pooler import (  # collected here
    Pool,
    T,
    engine_of,
    pg,
    test_a_read_that_is_interrupted_ends_at_the_server,
    test_a_session_that_the_server_ended_is_unavailable,
    test_answers_of_other_clients_do_not_change,
    test_limits_hold_behind_a_pooler,
    test_nothing_is_left_behind,
    test_row_security_by_a_setting_of_another_client,
    test_the_generic_engine_leaves_no_prepared_statement,
    test_what_others_left_behind_does_not_count,
)

__all__ = [
    "pg",
    "test_a_read_that_is_interrupted_ends_at_the_server",
    "test_a_session_that_the_server_ended_is_unavailable",
    "test_answers_of_other_clients_do_not_change",
    "test_limits_hold_behind_a_pooler",
    "test_nothing_is_left_behind",
    "test_row_security_by_a_setting_of_another_client",
    "test_the_generic_engine_leaves_no_prepared_statement",
    "test_what_others_left_behind_does_not_count",
]
pytestmark = [pytest.mark.starts, pytest.mark.soak]


@pytest.fixture(scope="session")
def pgbouncer() -> None:
    """Take its place in `pg`."""
    try:
        obtain("odyssey", "1.5")
    except NotToBeHad as error:
        absent("ODYSSEY", str(error), is_required_in_ci=False)


@pytest.fixture
def pool(pg: OfPostgreSQL) -> Iterator[Pool]:
    started: list[Odyssey] = []

    def start(mode: str = "transaction", **options: Any) -> Odyssey:
        started.append(Odyssey(pg.server, mode, **{"default_pool_size": 1, **options}))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_it_is_recognised(pg: OfPostgreSQL, pool: Pool, mode: str) -> None:
    engine = engine_of(pool(mode), pg)
    for _ in range(3):
        with closing(engine.open(probed=[T])) as session:
            assert session.server.pooler
            assert len(read(session, T)) == 500
            assert session.capabilities.split is None


def test_pooling_by_statement_is_refused(pg: OfPostgreSQL, pool: Pool) -> None:
    with pytest.raises(DatabaseRefused, match="statement pooling"):
        engine_of(pool("statement"), pg).open()

"""The conformance suite over PostgreSQL behind PgBouncer; the usual run has what differs there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected here
from tests.harness.legacies import OfPostgreSQL
from tests.harness.pgbouncer import PgBouncer
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.soak


class OfPooledPostgreSQL(OfPostgreSQL):
    """Read by the agent through a pooler; outside of transactions only the role is read-only."""

    lacks = frozenset({Capability.READ_ONLY_CONNECTION})

    def __init__(self, server: PostgreSQL, mode: str) -> None:
        super().__init__(server)
        self.pooler = PgBouncer(server, mode)
        self.url = self.pooler.url("postgres", self.database)

    def close(self) -> None:
        self.pooler.close()
        super().close()


@pytest.fixture
def legacy(pool_mode: str, postgresql: PostgreSQL) -> Iterator[Legacy]:
    made = OfPooledPostgreSQL(postgresql, pool_mode)
    yield made
    made.close()

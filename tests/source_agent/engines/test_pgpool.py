"""PostgreSQL behind Pgpool-II is refused by name, before anything is read; a bare proxy is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from driftline.errors import DatabaseRefused

from source_agent.engines.conformance.reads import read
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.legacies import OfPostgreSQL
from tests.harness.pgpool import Pgpool
from tests.harness.relay import Relay
from tests.harness.servers import PostgreSQL

pytestmark = pytest.mark.starts
T = Relation("t", table="t")


@pytest.fixture
def pg(postgresql: PostgreSQL) -> Iterator[OfPostgreSQL]:
    made = OfPostgreSQL(postgresql)
    made.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["streaming_replication", "raw"])
@pytest.mark.usefixtures("pgpool")
def test_it_is_refused_declared_or_not(pg: OfPostgreSQL, mode: str) -> None:
    with Pgpool(pg.server, mode) as pooler:
        url = pooler.url("postgres", pg.database)
        for declared in (False, True):
            with pytest.raises(DatabaseRefused, match="Pgpool-II") as caught:
                connect(url, None, Limits(), pooler=declared).open()
            assert "PgBouncer" in caught.value.remedy
        with closing(connect(pg.url, None, Limits()).open()) as session:
            assert read(session, T) == [["1"]]
        with pooler.client("postgres", pg.database) as other:
            assert other.execute("SELECT id FROM t").fetchone() == (1,)


def test_a_relay_is_asked_once_what_it_is_and_a_server_never(pg: OfPostgreSQL) -> None:
    """A server writes a line of its log about the question, which it does not know."""

    def asked() -> int:
        return (pg.server.folder / "log").read_bytes().count(b'parameter "pool_version"')

    before = asked()
    direct = pg.server.tcp_url("postgres", pg.database)
    for url in (pg.url, direct):
        with closing(connect(url, None, Limits()).open()) as session:
            assert read(session, T) == [["1"]]
    assert asked() == before
    with Relay(f"{pg.server.host}:{pg.server.port}") as relay:
        place = f"{pg.server.host}:{pg.server.port}"
        engine = connect(direct.replace(place, relay.address), None, Limits())
        for _ in range(2):
            with closing(engine.open()) as session:
                assert session.server.pooler == ""
                assert read(session, T) == [["1"]]
    assert asked() == before + 1

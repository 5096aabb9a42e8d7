"""SIGTERM: exchanges that run are ended first, whatever a database's library does with signals."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.rows.digests import Digest
from driftline.wire_pb2_grpc import SourceStub

from source_agent.engines.relations.shapes import Relation
from tests.harness.agents import Peer, channel, opening
from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS
from tests.harness.pair import SourceProcess

pytestmark = pytest.mark.slow  # starts processes

ENDED_S_MAX = 20.0
ROWS = 500


SOAK = [pytest.param(name, marks=pytest.mark.soak) for name in ("postgresql", *FAMILY)]


@pytest.fixture(params=["sqlite", "firebird", *SOAK])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "firebird":
        if request.getfixturevalue("firebird") is not None:
            pytest.skip("its server wants a password; the library is that of the embedded engine")
        from tests.harness.legacy_firebird import OfFirebird

        made: Any = OfFirebird(tmp_path, None)
    else:
        made = KINDS[request.param](request, tmp_path)
    made.run(made.sql('CREATE TABLE "t" ("id" INTEGER NOT NULL PRIMARY KEY)'))
    made.insert("t", [(i,) for i in range(ROWS)])
    yield made
    made.close()


def await_refusal(port: int) -> None:
    """Return once the agent takes no new calls."""
    ends_at = time.monotonic() + ENDED_S_MAX
    with contextlib.suppress(grpc.RpcError):
        while time.monotonic() < ends_at:
            with channel(port, None) as over:
                SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=0.5)
        raise AssertionError("it has not noticed the signal")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_exchange_is_ended_first(legacy: Any, tmp_path: Path, number: signal.Signals) -> None:
    relation = Relation("t", table='"t"' if legacy.name == "firebird" else "t")
    with closing(legacy.connect().open()) as session:
        recipe = session.describe(relation).recipe.id
    if legacy.name == "firebird":
        legacy.close()  # its embedded engine keeps the file to one process
    config = tmp_path / "source.toml"
    config.write_text(
        f"[database]\nurl = '{legacy.url}'\n"
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        f"[relations.t]\ntable = '{relation.table}'\n"
    )
    with SourceProcess(config, is_forked=True) as agent:
        port = int(agent.address.rpartition(":")[2])
        with channel(port, None) as over, Peer(over) as conversation:
            conversation.send(opening(recipe, relation="t", ours=Digest(1, 1)))
            assert conversation.reply().WhichOneof("message") == "verdict"
            agent.process.send_signal(number)
            await_refusal(port)
            conversation.send(pb.Request(whole=pb.Whole()))
            assert conversation.until("finished")[-1].finished.count == ROWS
        assert agent.process.wait(ENDED_S_MAX) == 0
    assert "Traceback" not in (tmp_path / "source.log").read_text()

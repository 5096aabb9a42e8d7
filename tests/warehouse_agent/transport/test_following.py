"""The relations of a stream are named by its first opening, to a source that takes their names."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.limits import FOLLOWING_RELATIONS_MAX
from driftline.wire import negotiation
from driftline.wire.negotiation import FOLLOWING

from source_agent.server.service import start
from tests.harness.agents import configuration, make_orders, opening
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel


@pytest.mark.starts
@pytest.mark.parametrize("is_older", [False, True])
def test_the_first_opening_names_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    make_orders(tmp_path / "orders.db", [(1, "a")])
    with sqlite3.connect(tmp_path / "orders.db") as connection:
        connection.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")
    connection.close()
    if is_older:
        older = {name: what for name, what in negotiation.FEATURES.items() if name != FOLLOWING}
        monkeypatch.setattr("source_agent.server.service.FEATURES", older)
    relations = '[relations.orders]\ntable = "orders"\n[relations.more]\ntable = "more"\n'
    server = start(configuration(tmp_path, tmp_path / "orders.db", certs=None, relations=relations))
    many = [f"r{number}" for number in range(FOLLOWING_RELATIONS_MAX + 9)]
    try:
        with SourceChannel(Source("erp", f"127.0.0.1:{server.port}", insecure=True)) as link:
            for named in ([], ["orders", "orders"], ["orders", "more", "orders"], [*many, "more"]):
                sent = [opening(bytes(16)), opening(bytes(16))]
                with link.stream(named) as stream:
                    for request in sent:
                        stream.send(request)
                        reply = stream.receive()
                        assert reply.refused.code == "RECIPE", "the opening itself was taken"
                following = [*dict.fromkeys(named)][:FOLLOWING_RELATIONS_MAX]
                following = [] if is_older else [name for name in following if name != "orders"]
                assert list(sent[0].open.following) == following
                assert (FOLLOWING in sent[0].open.features) is bool(following)
                assert sent[1] == pb.Request(open=opening(bytes(16)).open)
    finally:
        server.stop()

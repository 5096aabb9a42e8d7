"""A source without the call for activity: gRPC answers for it, and nothing is known."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from driftline.relations.activity import UnknownActivity

from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel


@pytest.mark.starts
def test_a_source_without_the_call_says_nothing_of_activity() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with SourceChannel(Source("erp", f"127.0.0.1:{port}", insecure=True)) as link:
            said = link.activity(["orders"])
    finally:
        server.stop(None)
    assert said == {"orders": UnknownActivity("the source is older than this question")}

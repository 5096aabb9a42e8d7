"""The time of a round trip, where something on the way answers connections by itself."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

WAY_S = 0.025  # each way, behind what accepts


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with Pair(NoSpark(), legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        yield pair.address
    legacy.close()


@pytest.fixture
def tunnel(address: str) -> Iterator[str]:
    """A tunnel that accepts at once, and hands on each piece after WAY_S."""
    listener, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()
    host, _, port = address.rpartition(":")

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection((host, int(port))) as target:
            other = {client: target, target: client}
            while not is_over.is_set():
                for ready in select.select([client, target], [], [], 0.1)[0]:
                    if not (piece := ready.recv(1 << 16)):
                        return
                    time.sleep(WAY_S)
                    other[ready].sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    is_over.set()
    thread.join(5)
    listener.close()


@pytest.mark.starts
def test_behind_a_tunnel_the_call_is_timed_and_not_the_connection(
    address: str, tunnel: str
) -> None:
    times = {}
    for place in (address, tunnel):
        with SourceChannel(Source("erp", place, insecure=True)) as link:
            times[place] = link.round_trip_s() or 0.0
    assert times[tunnel] >= 2 * WAY_S
    assert 0 < times[address] < times[tunnel]


@pytest.mark.starts
def test_a_source_that_does_not_answer_has_no_round_trip() -> None:
    with SourceChannel(Source("erp", "127.0.0.1:9", insecure=True)) as link:
        assert link.round_trip_s() is None

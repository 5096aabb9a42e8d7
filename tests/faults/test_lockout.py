"""What a client that says or takes nothing can keep from the others, over real mutual TLS."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.limits import CONNECTION_RPCS_MAX
from driftline.rows.digests import Digest
from driftline.wire_pb2_grpc import SourceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from source_agent.budgets import budget, places
from source_agent.budgets.budget import Governor
from source_agent.config.file import Budget
from source_agent.server import handlers
from tests.faults.test_quotas import LAKE, MART, Begin, Shared, equal, running, sets
from tests.harness.agents import Peer, channel, opening
from tests.source_agent.server.test_service import RECIPE

pytestmark = pytest.mark.slow  # waits for deadlines

__all__ = ["running", "sets"]  # fixtures

CALLS_OF_A_CHANNEL = CONNECTION_RPCS_MAX
RAW = (bytes, bytes)  # requests and replies as they are on the wire
DESCRIBE, CHECK = "/driftline.Source/Describe", "/grpc.health.v1.Health/Check"


@contextmanager
def headers_only(shared: Shared, certs: Path, method: str, channels: int) -> Iterator[list[Any]]:
    """Calls that never send their request; over the wire they are those of a unary stub."""
    with ExitStack() as stack:
        calls: list[Any] = []
        for _ in range(channels):
            over = stack.enter_context(channel(shared.server.port, certs))
            ask = over.stream_unary(method, *RAW)
            for _ in range(CALLS_OF_A_CHANNEL):
                nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
                stack.callback(nothing.put, None)
                calls.append(ask.future(iter(nothing.get, None), timeout=60))
        yield calls
        for call in calls:
            call.cancel()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("method", [DESCRIBE, CHECK])
def test_calls_that_send_no_request_keep_nobody_out(running: Begin, method: str) -> None:
    shared = running()
    with headers_only(shared, shared.mart, method, 7) as calls:
        refused = calls[-1].exception(timeout=20)
        assert isinstance(refused, grpc.RpcError)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with channel(shared.server.port, shared.lake) as over:
            asked = pb.DescribeRequest(protocol=1, relation="orders")
            assert SourceStub(over).Describe(asked, timeout=10).relations == ["orders"]
            stub = health_pb2_grpc.HealthStub(over)
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
    found = shared.audit()
    assert (LAKE, "orders", "described") in found
    assert ((MART, "", "NOT_NOW") in found) == (method == DESCRIBE)


@pytest.mark.parametrize("method", [DESCRIBE, CHECK])
def test_a_request_is_waited_for_and_not_without_end(
    running: Begin, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "OPEN_S", 0.3)
    shared = running()
    with channel(shared.server.port, shared.mart) as over:
        ask = over.stream_unary(method, *RAW)
        nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with pytest.raises(grpc.RpcError) as caught:
            ask(iter(nothing.get, None), timeout=20)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        nothing.put(None)
        with pytest.raises(grpc.RpcError) as caught:
            ask(iter(()), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    if method == DESCRIBE:
        assert [line for line in shared.audit() if line[0] == MART] == [
            (MART, "", "LIMIT"),
            (MART, "", "MALFORMED"),
        ]


def test_a_window_that_stays_closed_keeps_no_place(
    running: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The RPC's own thread is held up in gRPC by the first small reply."""
    monkeypatch.setattr(places, "WAITED_S_MAX", 0.3)
    shared = running("[limits]\nscans_at_once = 1\n")
    closed = (("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0))
    with channel(shared.server.port, shared.mart, closed) as over, Peer(over) as holder:
        holder.send(opening(RECIPE, ours=Digest(1, 1)))
        until(lambda: shared.engine.opened > 0)
        equal(shared, shared.lake)
    assert (MART, "orders", "NOT_NOW") in shared.audit()


def test_another_rate_counts_for_who_waits_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "RATE_LOOK_S", 0.05, raising=False)
    governor, stop = Governor(Budget(rows_per_second=1.0)), threading.Event()
    waiting = threading.Thread(target=governor.wait_rows, args=(60, stop), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    governor.adopt(Budget(rows_per_second=1e6))
    waiting.join(5)
    assert not waiting.is_alive()

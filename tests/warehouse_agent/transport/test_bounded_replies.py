"""A source that sends messages of very many parts, over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import COUNTED_BYTES_MIN, RECEIVE_BYTES_MAX_WAREHOUSE, REPLY_PARTS_MAX

from tests.harness.raw_server import served
from warehouse_agent.config import Source
from warehouse_agent.transport import bounded_replies
from warehouse_agent.transport.bounded_replies import parser
from warehouse_agent.transport.channel import SourceChannel

pytestmark = pytest.mark.starts
MANY = b"\x0a\x00" * COUNTED_BYTES_MIN  # an empty string, or an empty message, again and again
ORDERS = pb.DescribeReply(relations=["orders"], protocols=[1])


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Source, list[bytes]]]:
    """A server that answers every call with the last of these bytes."""
    monkeypatch.setattr(bounded_replies, "REPLY_PARTS_MAX", 1000)
    said = [MANY]
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    calls = {
        "Describe": unary(lambda *_: said[-1], None, None),
        "Activity": unary(lambda *_: said[-1], None, None),
        "Exchange": stream(lambda *_: iter(said[-1:]), None, None),
    }
    with served(calls) as made:
        yield made, said


CALLS: dict[str, Callable[[SourceChannel], object]] = {
    "Describe": lambda link: link.describe(""),
    "Activity": lambda link: link.activity(["orders"]),
    "Exchange": lambda link: link.stream().receive(),
}


@pytest.mark.parametrize("call", CALLS)
def test_replies_of_many_parts_are_refused(source: tuple[Source, list[bytes]], call: str) -> None:
    peer, said = source
    with SourceChannel(peer) as link:
        with pytest.raises(MalformedMessage, match="has more than 1,000 parts"):
            CALLS[call](link)
        said.append(ORDERS.SerializeToString())
        assert list(link.describe("").relations) == ["orders"], "the line is still there"


def test_the_largest_replies_of_a_source_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six parts for each relation; and one that is nearly all a frame."""
    most = 60_000
    assert most < REPLY_PARTS_MAX, "it is made small, so that the test takes little time"
    monkeypatch.setattr(bounded_replies, "REPLY_PARTS_MAX", most)
    allowance = pb.Allowance(begins="x", ends="x", rows_by_key=7)
    many = pb.DescribeReply(
        relations=[f"relation {n}" for n in range(most // 6)],
        allowances=[allowance] * (most // 6),
    )
    assert parser(pb.DescribeReply)(many.SerializeToString()) == many
    frame = pb.Reply(rows=pb.Rows(frame=bytes(RECEIVE_BYTES_MAX_WAREHOUSE - 100)))
    assert parser(pb.Reply)(frame.SerializeToString()) == frame

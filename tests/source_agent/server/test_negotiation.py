"""Agents of two releases: what is chosen, what is asked for, and what a source refuses by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import VersionMismatch
from driftline.limits import SAMPLES_MAX
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire import negotiation
from driftline.wire.negotiation import (
    Agreement,
    agree,
    check_features,
    check_fields,
    is_negotiable,
    unknown_fields,
)
from driftline.wire_pb2_grpc import SourceServicer, SourceStub, add_SourceServicer_to_server
from google.protobuf.message import Message

from source_agent.server.service import Server, start
from tests.harness.agents import Peer, Recorded, channel, configuration, make_orders, opening
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

RECIPE = Recipe((Column("id", parse_type("int8")), Column("comment", parse_type("text"))), 1).id
M = TypeVar("M", bound=Message)
FIELD_50 = b"\x90\x03\x05"  # number 50, a varint, 5
FIELD_1000 = b"\xc2\x3e\x01x"  # number 1000, one byte


def with_field(message: M, field: bytes = FIELD_50) -> M:
    """The message as a newer release would send it, with a field that this schema lacks."""
    return type(message).FromString(message.SerializeToString() + field)


# What is chosen


@pytest.mark.parametrize(
    ("theirs", "ours", "chosen"),
    [([], [1], 1), ([1], [1], 1), ([1, 2], [1], 1), ([1, 2, 3], [2, 3, 4], 3), ([], [1, 2], 1)],
)
def test_the_highest_common_protocol(theirs: list[int], ours: list[int], chosen: int) -> None:
    assert agree(theirs, [], our_protocols=ours).protocol == chosen


@pytest.mark.parametrize(("theirs", "ours"), [([2], [1]), ([], [2]), ([3, 4], [1, 2])])
def test_no_common_protocol(theirs: list[int], ours: list[int]) -> None:
    with pytest.raises(VersionMismatch, match=f"this warehouse {ours[0]}") as caught:
        agree(theirs, [], our_protocols=ours)
    assert caught.value.details["versions"] == ", ".join(map(str, theirs or [1]))


def test_only_features_that_both_have_are_asked_for() -> None:
    found = agree([1], ["zig", "new", "old"], our_features=["old", "ours", "zig"])
    assert found == Agreement(1, ("old", "zig"))
    assert agree([], [], our_features=["ours"]).features == ()
    assert agree([1], ["x" * 5000, "\x1b[2J"]).features == ()


def test_a_warehouse_without_a_choice_asks_nothing() -> None:
    assert not is_negotiable()
    assert not is_negotiable([1])
    assert is_negotiable([1, 2])
    assert is_negotiable([1], features=["feature"])


def test_unknown_features_are_refused_by_name() -> None:
    check_features([])
    check_features(["known"], known=["known"])
    with pytest.raises(VersionMismatch, match="asks for new, which") as caught:
        check_features(["known", "new"], known=["known"])
    assert caught.value.details == {"features": "known"}
    many = [f"f{n:02d}\x1b[2J{'x' * 500}" for n in range(SAMPLES_MAX + 5)]
    with pytest.raises(VersionMismatch, match="and 5 more") as caught:
        check_features(many)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1200


# Fields of a newer release


def test_unknown_fields_are_found_in_nested_messages() -> None:
    opened = pb.Open(relation="orders", within=with_field(pb.Within(first=1)))
    opened.sketch.CopyFrom(with_field(pb.Sketch(span=7), FIELD_1000))
    request = with_field(pb.Request(open=with_field(opened)))
    sent = pb.Request.FromString(request.SerializeToString())
    found = ["Open.50", "Request.50", "Sketch.1000", "Within.50"]
    assert sorted(unknown_fields(sent)) == found
    columns = [pb.ColumnDescription(name="a"), with_field(pb.ColumnDescription(name="b"))]
    described = pb.Description.FromString(pb.Description(columns=columns).SerializeToString())
    assert list(unknown_fields(described)) == ["ColumnDescription.50"]
    with pytest.raises(VersionMismatch, match=r"Within\.50"):
        check_fields(sent)


def test_what_this_release_sends_has_no_unknown_fields() -> None:
    cells = pb.Cells(fold=1, cells=b"\x90\x03\x05" * 1000, last=True)
    units = pb.Request(units=pb.Units(size=1, ks=FIELD_50, digests=bytes(8)))
    for message in (opening(RECIPE), pb.Request(cells=cells), units, pb.DescribeRequest()):
        assert list(unknown_fields(type(message).FromString(message.SerializeToString()))) == []


# The agent


class Agent:
    """A running source of one table, and the sessions it opened."""

    def __init__(self, server: Server, engine: Recorded, folder: Path) -> None:
        self.server, self.engine, self.folder = server, engine, folder


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    make_orders(tmp_path / "erp.db", [(1, "a"), (2, None)])
    config = configuration(tmp_path, tmp_path / "erp.db", certs=None)
    engine = Recorded(config)
    server = start(config, engine=engine)
    yield Agent(server, engine, tmp_path)
    server.stop()


@pytest.mark.starts
def test_describe_names_protocols_and_features(agent: Agent) -> None:
    with channel(agent.server.port, None) as over:
        stub = SourceStub(over)
        for relation in ("", "orders"):
            reply = stub.Describe(pb.DescribeRequest(protocol=1, relation=relation), timeout=10)
            assert list(reply.protocols) == list(negotiation.PROTOCOLS)
            assert list(reply.features) == sorted(negotiation.FEATURES)
        # How a warehouse learns what to speak, whatever it speaks itself.
        reply = stub.Describe(pb.DescribeRequest(protocol=99), timeout=10)
        assert list(reply.protocols) == list(negotiation.PROTOCOLS)


@pytest.mark.starts
def test_a_source_ignores_nothing_of_a_newer_warehouse(agent: Agent) -> None:
    asked = opening(RECIPE)
    asked.open.features.append("merkle-tiles")
    nested = opening(RECIPE)
    nested.open.within.CopyFrom(with_field(pb.Within(first=0, last=9)))
    cases = [
        (asked, "merkle-tiles"),
        (nested, "Within.50"),
        (pb.Request(open=with_field(opening(RECIPE).open)), "Open.50"),
        (with_field(opening(RECIPE)), "Request.50"),
    ]
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        for request, named in cases:
            peer.send(request)
            refused = peer.reply().refused
            assert (refused.code, named in refused.message) == ("VERSION", True), refused
            assert refused.remedy
        assert agent.engine.opened == 0, "nothing was read"
        peer.send(opening(RECIPE))  # a refusal ends the relation, and not the stream
        assert peer.until("finished")[-1].finished.count == 2
    agent.server.stop()
    lines = (agent.folder / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["VERSION"] * 4 + ["sent"]


@pytest.mark.starts
def test_a_refusal_keeps_no_writer_of_the_source_waiting(agent: Agent) -> None:
    """SQLite without WAL: the stream goes on after a refusal, and its transaction does not."""
    with closing(sqlite3.connect(agent.folder / "erp.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("CREATE TABLE other (n)")
    writer = sqlite3.connect(agent.folder / "erp.db", timeout=0.5, isolation_level=None)
    with closing(writer), channel(agent.server.port, None) as over, Peer(over) as peer:
        malformed = opening(RECIPE)
        malformed.open.count, malformed.open.sum = 1, bytes(16)
        for request, code in ((opening(bytes(16)), "RECIPE"), (malformed, "MALFORMED")):
            peer.send(request)
            if code == "MALFORMED":
                assert peer.reply().HasField("verdict")
                peer.send(request)  # and not what comes after a verdict
            assert peer.reply().refused.code == code
            writer.execute("INSERT INTO other VALUES (1)")
        peer.send(opening(RECIPE))
        assert peer.until("finished")[-1].finished.count == 2


@pytest.mark.starts
def test_a_message_that_only_a_newer_release_has(agent: Agent) -> None:
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(pb.Request.FromString(FIELD_1000))
        refused = peer.reply().refused
    assert (refused.code, "Request.1000" in refused.message) == ("VERSION", True)


@pytest.mark.starts
def test_a_later_message_with_an_unknown_field(agent: Agent) -> None:
    ours = opening(RECIPE)
    ours.open.count, ours.open.sum = 1, bytes(16)
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(ours)
        assert peer.reply().HasField("verdict")
        peer.send(with_field(pb.Request(whole=pb.Whole())))
        refused = peer.reply().refused
    assert (refused.code, "Request.50" in refused.message) == ("VERSION", True)


@pytest.mark.starts
def test_a_describe_with_an_unknown_field(agent: Agent) -> None:
    with channel(agent.server.port, None) as over:
        request = with_field(pb.DescribeRequest(protocol=1, relation="orders"))
        with pytest.raises(grpc.RpcError) as caught:
            SourceStub(over).Describe(request, timeout=10)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "DescribeRequest.50" in str(caught.value.details())
    assert agent.engine.opened == 0


# The warehouse


class NewerSource(SourceServicer):
    """A source that names what this release does not know."""

    def __init__(self, protocols: list[int]) -> None:
        self._protocols = protocols

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        reply = pb.DescribeReply(protocols=self._protocols, features=["merkle-tiles"])
        return pb.DescribeReply.FromString(reply.SerializeToString() + FIELD_1000)


@pytest.mark.starts
@pytest.mark.parametrize(("protocols", "is_served"), [([1, 2], True), ([], True), ([2, 3], False)])
def test_a_warehouse_meets_another_source(protocols: list[int], is_served: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_SourceServicer_to_server(NewerSource(protocols), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with SourceChannel(Source("erp", f"127.0.0.1:{port}", insecure=True)) as link:
                if is_served:
                    link.describe("orders")
                    assert link.agreed() == Agreement(1, ())
                else:
                    with pytest.raises(VersionMismatch, match="speaks protocol 2, 3"):
                        link.describe("orders")
        finally:
            server.stop(None).wait()

"""Large replies in pieces, to a warehouse that joins them; heartbeats while a warehouse sends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.limits import MESSAGE_BYTES_MAX, PIECE_BYTES_MIN
from driftline.rows import frames
from driftline.rows.digests import Digest
from driftline.wire import pieces
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.server.service import start
from tests.harness.agents import Peer, channel, configuration, make_orders, opening
from tests.source_agent.server.test_service import RECIPE
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

pytestmark = pytest.mark.starts

LARGE = 3 << 20  # one row, which cannot be cut; its text compresses to half
SMALL = 400


@contextmanager
def source(folder: Path, *, heartbeat_s: float = 5.0, idle_s: float = 120.0) -> Iterator[int]:
    """A source of many small rows and a large one; yields its port."""
    noise = random.Random(6)
    rows = [(n, noise.randbytes(SMALL).hex()) for n in range(1000)]
    make_orders(folder / "erp.db", [*rows, (1000, noise.randbytes(LARGE // 2).hex())])
    config = configuration(folder, folder / "erp.db", certs=None)
    text = config.path.read_text()
    config.path.write_text(
        text.replace("[database]\n", f"[database]\nidle_timeout_s = {idle_s}\n", 1)
    )
    server = start(load(config.path), heartbeat_s=heartbeat_s)
    try:
        yield server.port
    finally:
        server.stop()


def counted(replies: list[pb.Reply]) -> tuple[int, Digest]:
    """Return the number of rows in frames, and the total that the source says."""
    assert replies[-1].WhichOneof("message") == "finished"
    heads = [frames.head(reply.rows.frame) for reply in replies[:-1]]
    done = replies[-1].finished
    return sum(head.digest.count for head in heads), Digest(
        done.count, int.from_bytes(done.sum, "little")
    )


def test_who_joins_pieces_gets_them_and_who_does_not_gets_whole_replies(tmp_path: Path) -> None:
    with source(tmp_path) as port, channel(port, None) as over:
        stub = SourceStub(over)
        whole = list(stub.Exchange(iter([opening(RECIPE)])))
        cut = list(stub.Exchange(iter([opening(RECIPE)]), metadata=[pieces.METADATA]))
    assert max(reply.ByteSize() for reply in whole) > LARGE // 2
    assert all(reply.WhichOneof("message") != "piece" for reply in whole)
    assert max(reply.ByteSize() for reply in cut[:10]) <= PIECE_BYTES_MIN + 16, "it is not known"
    assert max(reply.ByteSize() for reply in cut) <= MESSAGE_BYTES_MAX + 16
    joined = pieces.PieceJoiner()
    replies = [reply for reply in map(joined.add, cut) if reply is not None]
    assert [reply.rows.frame for reply in replies] == [reply.rows.frame for reply in whole]
    assert counted(replies)[0] == 1001


def test_a_warehouse_counts_what_came_and_sees_whole_replies(tmp_path: Path) -> None:
    with (
        source(tmp_path) as port,
        SourceChannel(Source("erp", f"127.0.0.1:{port}", insecure=True)) as link,
        link.stream() as stream,
    ):
        stream.send(opening(RECIPE))
        replies = [stream.receive()]
        while replies[-1].WhichOneof("message") != "finished":
            replies.append(stream.receive())
        size = sum(reply.ByteSize() for reply in replies)
        assert size < link.bytes_received < 1.001 * size + 100
    assert counted(replies)[0] == 1001


def test_a_source_shows_that_it_lives_while_the_warehouse_sends(tmp_path: Path) -> None:
    """The rest of a request may be on a slow line for longer than a warehouse bears silence."""
    with (
        source(tmp_path, heartbeat_s=0.05) as port,
        SourceChannel(Source("erp", f"127.0.0.1:{port}", insecure=True)) as link,
        link.stream() as stream,
    ):
        stream.send(opening(RECIPE, ours=Digest(1, 1)))
        while (reply := stream.receive()).WhichOneof("message") == "progress":
            pass
        assert reply.WhichOneof("message") == "verdict"
        piece = bytes(8)
        for _ in range(3):
            began = time.monotonic()
            stream.send(pb.Request(digests=pb.Digests(coarsen=0, digests=piece)))
            assert stream.receive().WhichOneof("message") == "progress"
            assert time.monotonic() - began < 5
        stream.send(pb.Request(digests=pb.Digests(coarsen=0, digests=piece, last=True)))
        while (reply := stream.receive()).WhichOneof("message") == "progress":
            pass
        assert reply.WhichOneof("message") == "mismatch"


def test_a_client_is_not_silent_while_replies_are_on_their_way(tmp_path: Path) -> None:
    """The comparison ended long before; each piece comes in time."""
    window = (("grpc.http2.lookahead_bytes", PIECE_BYTES_MIN), ("grpc.http2.bdp_probe", 0))
    began, joined, last = time.monotonic(), pieces.PieceJoiner(), pb.Reply()
    with (
        source(tmp_path, heartbeat_s=0.05, idle_s=0.6) as port,
        channel(port, None, window) as over,
        Peer(over, metadata=[pieces.METADATA]) as peer,
    ):
        peer.send(opening(RECIPE))
        while last.WhichOneof("message") != "finished":
            time.sleep(0.1)
            last = joined.add(peer.reply()) or last
    assert time.monotonic() - began > 1.5

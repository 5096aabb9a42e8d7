"""A channel: its settings, against what line and source allow, and a source without a call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from driftline.limits import LINE_HELD_BYTES_MAX, NO_PROGRESS_S
from driftline.relations.activity import UnknownActivity

from source_agent.server import transport
from source_agent.server.acceptor import UNACKNOWLEDGED_MS_MAX
from warehouse_agent.config import Source
from warehouse_agent.transport import channel

ON_THE_LINE_S = 5.0  # what a stopped source had sent: 1.25 MB at 2 Mbit/s


def test_a_stopped_source_is_noticed_in_time() -> None:
    """Pings count the silence from the last byte, which comes after the source has stopped."""
    ours, theirs = dict(channel._OPTIONS), dict(transport._OPTIONS)
    # The shorter of the two counts; that of the keep-alive is TCP's as well.
    assert ours["grpc.http2.ping_timeout_ms"] <= ours["grpc.keepalive_timeout_ms"]
    noticed_s = (ours["grpc.keepalive_time_ms"] + ours["grpc.http2.ping_timeout_ms"]) / 1000
    assert noticed_s + ON_THE_LINE_S <= NO_PROGRESS_S
    least_ms = theirs["grpc.http2.min_ping_interval_without_data_ms"]
    assert ours["grpc.keepalive_time_ms"] >= 2 * least_ms, "the source would take it for a flood"


def test_an_answer_to_a_ping_may_wait_behind_rows() -> None:
    """Two share a line of 256 kbit/s, on which all that may be held is on its way to one of them.

    The warehouse sends a ping if nothing comes, and rows come.
    """
    ours, theirs = dict(channel._OPTIONS), dict(transport._OPTIONS)
    assert ours["grpc.http2.bdp_probe"] == 0, "pings to measure a line that carries rows"
    behind_ms = LINE_HELD_BYTES_MAX / (256_000 / 8 / 2) * 1000
    assert theirs["grpc.http2.ping_timeout_ms"] > behind_ms
    assert theirs["grpc.keepalive_timeout_ms"] == theirs["grpc.http2.ping_timeout_ms"]
    # A warehouse that is gone acknowledges nothing.
    assert theirs["grpc.keepalive_time_ms"] + UNACKNOWLEDGED_MS_MAX <= NO_PROGRESS_S * 1000


@pytest.mark.starts
def test_a_source_that_is_older_than_a_question() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        source = Source("erp", f"127.0.0.1:{port}", insecure=True)
        with channel.SourceChannel(source) as link:
            said = link.activity(["orders", "items"])
    finally:
        server.stop(None).wait()
    assert said == dict.fromkeys(
        ("orders", "items"), UnknownActivity("the source is older than this question")
    )

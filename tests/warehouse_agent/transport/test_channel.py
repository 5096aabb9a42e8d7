"""The settings of a channel, against what a line and the source allow."""

from __future__ import annotations

from driftline.limits import NO_PROGRESS_S

from source_agent.server import transport
from warehouse_agent.transport import channel

ON_THE_LINE_S = 5.0  # what a stopped source had sent: 1.25 MB at 2 Mbit/s


def test_a_stopped_source_is_noticed_in_time() -> None:
    """Pings count the silence from the last byte, which comes after the source has stopped."""
    ours, theirs = dict(channel._OPTIONS), dict(transport._OPTIONS)
    assert ours["grpc.http2.ping_timeout_ms"] == ours["grpc.keepalive_timeout_ms"]
    noticed_s = (ours["grpc.keepalive_time_ms"] + ours["grpc.http2.ping_timeout_ms"]) / 1000
    assert noticed_s + ON_THE_LINE_S <= NO_PROGRESS_S
    least_ms = theirs["grpc.http2.min_ping_interval_without_data_ms"]
    assert ours["grpc.keepalive_time_ms"] >= 2 * least_ms, "the source would take it for a flood"

"""A gRPC channel whose replies are refused before they are parsed, if they have too many parts.

What refuses a reply is what the call returns in its place: gRPC would make a broken line of an
error that is raised where it parses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import REPLY_PARTS_MAX
from driftline.wire.message_parts import check_parts
from google.protobuf.message import Message

_M = TypeVar("_M", bound=Message)
_REPLIES: Final[dict[str, type[Message]]] = {
    "/driftline.Source/Describe": pb.DescribeReply,
    "/driftline.Source/Exchange": pb.Reply,
    "/driftline.Source/Activity": pb.ActivityReply,
}


@dataclass(frozen=True, slots=True)
class BoundedReplies:
    """A channel for `SourceStub`, which needs no more of it."""

    channel: grpc.Channel

    def unary_unary(self, path: str, **options: Any) -> Callable[..., Any]:
        """Return a call with one reply."""
        return self.channel.unary_unary(path, **self._bounded(path, options))

    def stream_stream(self, path: str, **options: Any) -> Callable[..., Any]:
        """Return a call with a stream of replies."""
        return self.channel.stream_stream(path, **self._bounded(path, options))

    @staticmethod
    def _bounded(path: str, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "response_deserializer": parser(_REPLIES[path])}


def parser(kind: type[_M]) -> Callable[[bytes], _M | MalformedMessage]:
    """Return a function that parses messages of a kind, or returns why it does not."""

    def parsed(data: bytes) -> _M | MalformedMessage:
        try:
            check_parts(data, kind, REPLY_PARTS_MAX)
        except MalformedMessage as error:
            return error
        return kind.FromString(data)

    return parsed


def unwrap(reply: _M | MalformedMessage) -> _M:
    """Return the reply of a call. Raises MalformedMessage: it was refused."""
    if isinstance(reply, MalformedMessage):
        raise reply
    return reply

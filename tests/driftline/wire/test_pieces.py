"""A reply in pieces is that reply; pieces of anything else are refused."""

from __future__ import annotations

import itertools

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import (
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MIN,
    RECEIVE_BYTES_MAX_WAREHOUSE,
    REPLY_PARTS_MAX,
)
from driftline.wire import pieces
from hypothesis import given
from hypothesis import strategies as st


def rows(size: int) -> pb.Reply:
    return pb.Reply(rows=pb.Rows(frame=bytes(size)))


def piece(data: bytes, *, last: bool = False) -> pb.Reply:
    return pb.Reply(piece=pb.Piece(data=data, last=last))


@given(
    size=st.integers(0, 5 * PIECE_BYTES_MIN),
    sizes=st.lists(st.integers(PIECE_BYTES_MIN, 2 * PIECE_BYTES_MIN), min_size=1),
)
def test_what_is_cut_is_joined(size: int, sizes: list[int]) -> None:
    joined, sent, allowed = pieces.PieceJoiner(), rows(size), itertools.cycle(sizes)
    for _ in range(2):
        *before, last = pieces.cut(sent, lambda: next(allowed))
        assert [joined.add(message) for message in before] == [None] * len(before)
        assert joined.add(last) == sent
        assert all(message.ByteSize() <= max(sizes) + 16 for message in (*before, last))


@pytest.mark.parametrize("size", [0, 100, MESSAGE_BYTES_MAX - 64])
def test_what_fits_is_sent_as_it_is(size: int) -> None:
    sent = rows(size)
    assert list(pieces.cut(sent, lambda: MESSAGE_BYTES_MAX)) == [sent]


FULL = bytes(PIECE_BYTES_MIN)
MALFORMED = {
    "nothing": [piece(b"")],
    "nothing, at the end": [piece(FULL), piece(b"", last=True)],
    "a small one before the last": [piece(FULL[1:])],
    "another reply between two": [piece(FULL), rows(1)],
    "progress between two": [piece(FULL), pb.Reply(progress=pb.Progress())],
    "no reply": [piece(b"\xff" * 10, last=True)],
    "a piece of pieces": [piece(piece(b"x", last=True).SerializeToString(), last=True)],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_other_pieces_are_refused(name: str) -> None:
    joined = pieces.PieceJoiner()
    *before, last = MALFORMED[name]
    for message in before:
        assert joined.add(message) is None
    with pytest.raises(MalformedMessage):
        joined.add(last)


def test_no_more_is_held_than_the_largest_reply() -> None:
    joined, most = pieces.PieceJoiner(), RECEIVE_BYTES_MAX_WAREHOUSE // MESSAGE_BYTES_MAX
    one = piece(bytes(MESSAGE_BYTES_MAX))
    assert [joined.add(one) for _ in range(most)] == [None] * most
    with pytest.raises(MalformedMessage, match="too many"):
        joined.add(one)


def test_a_reply_of_very_many_parts_is_refused_before_it_is_parsed() -> None:
    """As one that comes whole (`bounded_replies`): each empty part takes 2 bytes here."""
    data = pb.Reply(progress=pb.Progress()).SerializeToString() * (REPLY_PARTS_MAX + 1)
    joined, size = pieces.PieceJoiner(), MESSAGE_BYTES_MAX
    *before, last = [data[at : at + size] for at in range(0, len(data), size)]
    assert [joined.add(piece(one)) for one in before] == [None] * len(before)
    with pytest.raises(MalformedMessage, match="more than 1,048,576 parts"):
        joined.add(piece(last, last=True))

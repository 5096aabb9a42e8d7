"""Parts of a message: more than an honest client sends are refused, what it sends is not."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import COUNTED_BYTES_MIN, KEY_BYTES_MAX, MESSAGE_PARTS_MAX, PART_RANGES_MAX
from driftline.wire.message_parts import check_parts as check_parts_of
from google.protobuf.message import Message

MANY = MESSAGE_PARTS_MAX + 1
BYTES = COUNTED_BYTES_MIN


def check_parts(data: bytes, kind: type[Message]) -> None:
    check_parts_of(data, kind, MESSAGE_PARTS_MAX)


def _open(**fields: object) -> pb.Request:
    return pb.Request(open=pb.Open(**fields))  # type: ignore[arg-type]


def _padded(request: Message, size: int) -> bytes:
    """With an unknown field behind it, so that it is counted."""
    return request.SerializeToString() + b"\xfa\x3f" + _varint(size) + bytes(size)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x00\x12\x00" * MANY,  # Open and Whole, which replace each other
        _padded(_open(features=[""] * MANY), BYTES),
        _padded(_open(start_steps=[0] * MANY), BYTES),
        _padded(_open(between=pb.Between(lower=[""] * MANY)), BYTES),
        _padded(_open(grouping=pb.Grouping(
            keys=pb.NamedKeys(ranges=[pb.Between()] * MANY))), BYTES),
        _padded(_open(derivation=pb.Derivation(rows=pb.Predicate(
            every=pb.Predicates(parts=[pb.Predicate()] * MANY)))), BYTES),
        b"\xf8\x0f\x01" * 2 * MANY,  # an unknown number
        b"\x0d\x00\x00\x00\x00" * MANY,
        b"\x0b\x0c" * 2 * MANY,  # a group that begins and ends
    ],
    ids=range(9),
)  # fmt: skip
def test_many_parts_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="more than 16,384 parts"):
        check_parts(data, pb.Request)


@pytest.mark.parametrize(
    "request_",
    [
        pb.Request(cells=pb.Cells(cells=bytes(512 << 10))),
        pb.Request(units=pb.Units(size=1, keys=b"\x0a\x00" * (1 << 20))),
        _open(
            grouping=pb.Grouping(
                keys=pb.NamedKeys(
                    ranges=[pb.Between(lower=["x" * KEY_BYTES_MAX], upper=["y" * KEY_BYTES_MAX])]
                    * PART_RANGES_MAX
                )
            )
        ),
        _open(start_steps=[1 << 60] * 256, strata=b"\x0a" * (100 << 10)),
    ],
    ids=range(4),
)
def test_what_a_warehouse_sends_passes(request_: pb.Request) -> None:
    assert request_.ByteSize() >= BYTES
    check_parts(request_.SerializeToString(), pb.Request)


def test_bytes_that_are_no_message_are_left_to_the_parser() -> None:
    whole = _padded(_open(features=["a"] * 100), BYTES)
    rng = random.Random(1)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 20)):
            data[rng.randrange(400)] = rng.randrange(256)
        with suppress(MalformedMessage):
            check_parts(bytes(data[: rng.randint(BYTES, len(data))]), pb.Request)
    check_parts(b"\xff" * BYTES, pb.Request)
    size, heads = 0, []
    while size < BYTES:  # 17,000 levels: Python calls no deeper than 1,000
        heads.append(b"\x22" + _varint(size))
        size += len(heads[-1])
    with pytest.raises(MalformedMessage):
        check_parts(b"".join(reversed(heads)), pb.Predicate)

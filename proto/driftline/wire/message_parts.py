"""Refuse a message of too many parts before it is parsed.

A parsed message takes memory for each part: a submessage of 2 bytes takes 40, one that replaces
another of its `oneof` takes as much again, an empty string 16. So 4 MB could become 200 MB, in each
place that a client has. Strings and bytes, which make large messages of honest clients, take what
they took on the line.

Rejected: a smaller limit of bytes. The bounds of 64 ranges of large keys are a megabyte.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from driftline.errors import MalformedMessage
from driftline.limits import COUNTED_BYTES_MIN

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_WHOLE = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


class _NoMessage(Exception):
    """The bytes end too early, or no field begins where one should."""


def check_parts(data: bytes, kind: type[Message], most: int) -> None:
    """Raise MalformedMessage if a message of this kind has more than `most` parts.

    A part is a field, as often as it is there, or a byte of packed numbers. Bytes that are no
    message pass: the parser refuses them.
    """
    if len(data) < COUNTED_BYTES_MIN:
        return
    parts, left = 0, [(0, len(data), kind.DESCRIPTOR)]
    try:
        while left:
            at, end, message = left.pop()
            while at < end:
                tag, at = _varint(data, at, end)
                at, length = _value(data, at, end, tag & 7)
                parts += 1
                field = message.fields_by_number.get(tag >> 3)
                if length and field is not None and field.message_type is not None:
                    left.append((at - length, at, field.message_type))
                elif length and field is not None and field.type not in _WHOLE:
                    parts += length
                if parts > most:
                    raise MalformedMessage(
                        f"A {kind.__name__} of {len(data):,} bytes has more than {most:,} parts."
                    )
    except _NoMessage:
        return


def _value(data: bytes, at: int, end: int, wire_type: int) -> tuple[int, int]:
    """Return where the value at `at` ends, and its length if it states one, else 0."""
    length = 0
    if wire_type == _VARINT:
        _, at = _varint(data, at, end)
    elif wire_type == _LENGTH:
        length, at = _varint(data, at, end)
        at += length
    else:
        at += _FIXED.get(wire_type, 0)  # else a group: its fields count as those around it
    if at > end:
        raise _NoMessage
    return at, length


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends."""
    number = shift = 0
    while at < end and shift < 70:  # at most ten bytes
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise _NoMessage

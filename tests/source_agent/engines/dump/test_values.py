"""Blocks of numbers become the bytes that each has alone, or are refused as one of them is."""

from __future__ import annotations

import struct

import pytest
from driftline.errors import ValueDoesNotFit
from driftline.values.types import parse_type
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.dump import values
from source_agent.engines.dump.formats import FileFormat
from source_agent.engines.encoding.plain_values import joined
from source_agent.engines.encoding.rows import from_text

FORMAT = FileFormat("a.toml", "csv", ("id",), (parse_type("int8"),))
UNFIT = (ValueDoesNotFit, ValueError, OverflowError, TypeError, struct.error)  # as of `joined`
DIGITS = st.from_regex(r"-?\d{1,19}", fullmatch=True)
NUMBERS = st.from_regex(r"-?\d{0,14}(\.\d{1,3})?", fullmatch=True)
ODD = st.text("0123456789-+.,_ e", max_size=6)


def encoded(type: str, texts: list[str]) -> list[bytes] | None:
    """The rows of one column; None if it is refused."""
    declared = parse_type(type)
    encode = values.encoders(FORMAT)[values.form_of(declared)](declared)
    try:
        return joined([[t.encode() for t in texts]], [encode], [False])
    except UNFIT:
        return None


def alone(type: str, text: str) -> bytes | None:
    try:
        [value] = from_text(parse_type(type))([text.encode()])
    except UNFIT:
        return None
    return b"\0\1" + value


@pytest.mark.parametrize("type", ["int2", "int4", "int8", "oid", "numeric(9,2)", "numeric(15,0)"])
@given(texts=st.lists(DIGITS | NUMBERS, min_size=1, max_size=6), odd=st.none() | ODD)
def test_a_block_is_its_values(type: str, texts: list[str], odd: str | None) -> None:
    if odd is not None:
        texts = [*texts, odd]
    each = [alone(type, text) for text in texts]
    found = encoded(type, texts)
    if found is not None:
        assert found == each
    else:
        # Integers are digits here: the string form also allows a plus sign, for one.
        assert None in each or any(set(t) - set("0123456789-.") for t in texts)


@pytest.mark.parametrize(("type", "text"), [("numeric(15,0)", "1.0"), ("numeric(9,2)", "1.500")])
def test_a_zero_too_many_is_refused_in_any_block(type: str, text: str) -> None:
    for others in ([], ["1"], ["1", "12345678901234567890"]):
        assert encoded(type, [*others, text]) is None
        assert alone(type, text) is None


def test_numbers_are_read_at_once_only_if_they_all_are_plain() -> None:
    assert values._numbers([b"1", b"-20", b"000"], 0) is not None
    found = values._numbers([b"1.05", b"-0.50", b"12345.67"], 2)
    assert found is not None
    assert found.tolist() == [105, -50, 1234567]
    for odd in (b"", b"-", b"1-2", b"1,2", b"1.5", b"+1", b" 1", b"1" * 19, b"--1", b"\xd9\xa3"):
        assert values._numbers([b"7", odd, b"8"], 0) is None, odd
    for odd in (b"", b"1", b".50", b"-.50", b"1.5", b"1.505", b"1.5.0", b"1.-5", b"1,0.50", b"."):
        assert values._numbers([b"7.00", odd, b"8.00"], 2) is None, odd

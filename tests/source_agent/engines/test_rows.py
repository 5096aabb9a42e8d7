"""Decimals of a driver become the bytes that the contract defines."""

from __future__ import annotations

from decimal import Decimal

import pytest
from driftline import errors
from driftline.values.send_format import string_encoder
from driftline.values.types import parse_type
from hypothesis import given
from hypothesis import strategies as st

from source_agent.engines.encoding.rows import decimal_encoder, short_decimals


@given(
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.integers(-(10**38) + 1, 10**38 - 1),
)
def test_decimals_are_encoded_as_defined(size: tuple[int, int], number: int) -> None:
    precision, scale = size
    number = number % 10**precision * (1 if number > 0 else -1)
    type = parse_type(f"numeric({precision},{scale})")
    digits = f"{abs(number):0{scale + 1}d}"
    point = len(digits) - scale
    text = "-" * (number < 0) + (f"{digits[:point]}.{digits[point:]}" if scale else digits)
    expected = string_encoder(type)(text)
    assert decimal_encoder(type)(text.encode()) == expected
    if precision <= 15:
        piece = len(expected).to_bytes(4, "big") + expected
        raws = [text.encode(), float(text), None]
        assert short_decimals(type)(raws) == [piece, piece, b"\xff\xff\xff\xff"]


@given(st.floats(allow_nan=False))
def test_a_double_with_more_decimals_is_refused(value: float) -> None:
    type = parse_type("numeric(15,4)")
    try:
        piece = string_encoder(type)(format(Decimal(repr(value)), "f"))
    except (errors.ValueDoesNotFit, ArithmeticError):
        with pytest.raises(errors.ValueDoesNotFit):
            short_decimals(type)([value])
    else:
        assert short_decimals(type)([value]) == [len(piece).to_bytes(4, "big") + piece]

"""Spelling of drivers' values, which must know nothing of the encoders that it checks."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import uuid
from decimal import Decimal
from typing import Any

import pytest
from driftline.values.types import parse_type

from source_agent.engines.own_values import postgresql, spelling
from source_agent.engines.own_values.reading import NotComparable

UTC_PLUS_2 = dt.timezone(dt.timedelta(hours=2))
SPELLED = [
    ("int8", 7, "7"),
    ("int8", Decimal(7), "7"),
    ("numeric(9,2)", 1.5, "1.50"),
    ("numeric(9,2)", Decimal("-0.00"), "0.00"),
    ("numeric(9,2)", Decimal("1.005"), "1.005"),
    ("numeric", Decimal("1.10"), "1.10"),
    ("numeric", Decimal("1E+3"), "1000"),
    ("numeric", Decimal("NaN"), "NaN"),
    ("bool", 1, "true"),
    ("bytea", memoryview(b"\0\xff"), "00ff"),
    ("date", dt.date(1, 1, 1), "0001-01-01"),
    ("time", dt.time(1, 2, 3, 400000), "01:02:03.4"),
    ("timestamp", dt.datetime(1, 1, 1), "0001-01-01 00:00:00"),  # noqa: DTZ001
    ("timestamp", "2020-01-01 00:00:00.100", "2020-01-01 00:00:00.1"),
    ("timestamptz", dt.datetime(2020, 1, 1, 2, tzinfo=UTC_PLUS_2), "2020-01-01 00:00:00+00"),
    ("uuid", uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("text", "a ", "a "),
    ("text", b"\1", "01"),
    ("jsonb", "{}", "{}"),
]
UNKNOWN = [
    ("int8", "7"),
    ("int8", 1.5),
    ("bool", "true"),
    ("date", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ("timestamp", dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    ("numeric", b"1"),
    ("text", object()),
    ("interval", dt.timedelta(1)),
]


@pytest.mark.parametrize(("type", "value", "text"), SPELLED)
def test_values_are_spelled_as_they_are_published(type: str, value: Any, text: str) -> None:
    assert spelling.spelled(parse_type(type), value) == text


@pytest.mark.parametrize(("type", "value"), UNKNOWN)
def test_a_class_that_says_too_little_is_not_compared(type: str, value: Any) -> None:
    with pytest.raises(NotComparable, match=r"the driver gives the class \w+"):
        spelling.spelled(parse_type(type), value)


def test_floats_are_their_bits() -> None:
    for kind, one, other in (("float8", 0.1, 0.10000000000000002), ("float4", 1e-45, 3e-45)):
        type = parse_type(kind)
        assert spelling.normal(type, repr(one)) == spelling.spelled(type, one)
        assert spelling.normal(type, repr(one)) != spelling.spelled(type, other)
        assert spelling.normal(type, "-0.0") != spelling.spelled(type, 0.0)
        assert spelling.normal(type, "NaN") == spelling.spelled(type, float("-nan"))
        assert spelling.normal(type, "Infinity") == spelling.spelled(type, float("inf"))
    assert spelling.spelled(parse_type("float4"), 1e300) == "1e+300"


@pytest.mark.parametrize(
    ("published", "value", "is_same"),
    [
        ("1.50", Decimal("1.5"), True),
        ("15e-1", Decimal("1.5"), False),
        ("0.1", 0.1, True),
        ("0.1", 0.10000000000000002, False),
        ("00FF", b"\0\xff", True),
        ("00 FF", b"\0\xff", False),
        ("-838:59:59.500", -dt.timedelta(0, 3020399, 500000), True),
        ("00:00:01", dt.timedelta(seconds=2), False),
        ("2020-01-01", dt.date(2020, 1, 2), False),
    ],
)  # fmt: skip
def test_a_text_of_another_form_must_mean_the_value(
    published: str, value: Any, is_same: bool
) -> None:
    assert (spelling.spelled(parse_type("text"), value, published) == published) is is_same


def test_texts_of_postgresql() -> None:
    assert postgresql._moment("0044-03-15 00:30:00+01 BC") == "-0043-03-14 23:30:00+00"
    assert postgresql._moment("0001-01-01 BC") == "0000-01-01"
    assert postgresql._moment("12024-10-27 02:30:00+05:30") == "12024-10-26 21:00:00+00"
    assert postgresql._moment("-infinity") == "-infinity"
    assert postgresql._interval("-1 years -2 mons +3 days -04:05:06.7") == "P-14M3DT-14706.7S"
    assert postgresql._interval("00:00:00") == "P0M0DT0S"
    assert postgresql._zoned("12:00:00-05:30") == "12:00:00-05:30"
    assert postgresql._money("($1,234.50)", 2) == Decimal("-1234.50")
    assert postgresql._as_cast("t", "true") == "true"
    assert postgresql._as_cast("10.0.0.1", "10.0.0.1/32") == "10.0.0.1/32"
    assert postgresql._as_cast("10.0.0.1", "10.0.0.2/32") == "10.0.0.1"
    assert postgresql._as_cast("<a/>", '<?xml version="1.0"?><a/>').startswith("<?xml")
    with pytest.raises(NotComparable):
        postgresql._interval("@ 1 day")


def test_nothing_is_shared_with_the_encoders() -> None:
    for module in (spelling, postgresql):
        tree = ast.parse(inspect.getsource(module))
        named = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert "driftline.values.send_format" not in named
        assert not any(
            "encoding" in name or name.startswith("driftline.values.times") for name in named
        )

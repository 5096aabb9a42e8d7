"""Derivations: messages, JSON, one form of equal predicates, limits, and what is refused."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DerivationRefused, LimitExceeded, MalformedMessage
from driftline.limits import (
    DERIVATION_BYTES_MAX,
    DERIVATION_COMPARISONS_MAX,
    DERIVATION_DEPTH_MAX,
    DERIVATION_VALUES_MAX,
)
from driftline.relations.derivation_json import from_json, to_json
from driftline.relations.derivation_messages import (
    deflated,
    from_message,
    inflated,
    to_message,
)
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    DerivablePart,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    canonical,
    check,
    comparisons,
    depth,
    is_literal,
    text_of,
)
from driftline.values.types import Column, DeclaredType, Recipe, parse_type
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import derivations
from tests.reference.predicates import keeps, shuffled, truth

TYPES = {
    "n": parse_type("int4"),
    "price": parse_type("numeric(7,2)"),
    "day": parse_type("date"),
    "at": parse_type("timestamp"),
    'no"te': parse_type("text"),
}
COLUMNS = tuple(Column(name, type) for name, type in TYPES.items())
COMPARED = dict.fromkeys(TYPES, Comparable.ORDER)
LITERALS = {
    "n": ["-1", "0", "7", "2147483647"],
    "price": ["-0.01", "0.00", "1.50", "99999.99"],
    "day": ["0001-01-01", "2020-02-29", "9999-12-31"],
    "at": ["2020-02-29 00:00:00", "2020-02-29 00:00:00.000001"],
    'no"te': ["", "a", "A", "a ", "ä", "😀", "it's", "\\"],
}
VALUES: dict[str, list[Any]] = {
    "n": [None, -1, 0, 7, 8],
    "price": [None, Decimal("-0.01"), Decimal("0"), Decimal("1.50"), Decimal("2")],
    "day": [None, date(1, 1, 1), date(2020, 2, 29), date(2021, 1, 1)],
    "at": [None, *map(datetime.fromisoformat, ["2020-02-29", "2020-02-29 00:00:00.000001"])],
    'no"te': [None, b"", b"a", b"a ", "ä".encode(), b"b"],
}


@st.composite
def one_comparison(draw: st.DrawFn) -> ColumnPredicate:
    column = draw(st.sampled_from(list(TYPES)))
    operator = draw(st.sampled_from(Operator))
    if operator is Operator.IS_NULL:
        return ColumnPredicate(column, operator)
    count = draw(st.integers(1, 4)) if operator is Operator.IN else 1
    literal = st.sampled_from(LITERALS[column])
    return ColumnPredicate(column, operator, tuple(draw(literal) for _ in range(count)))


def _larger(part: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    parts = st.lists(part, min_size=1, max_size=3).map(tuple)
    return st.one_of(parts.map(AndPredicate), parts.map(OrPredicate), part.map(NotPredicate))


PREDICATES: st.SearchStrategy[Predicate] = st.recursive(one_comparison(), _larger, max_leaves=12)
SHALLOW = PREDICATES.filter(lambda p: depth(p) <= DERIVATION_DEPTH_MAX)
CHOSEN = st.none() | st.lists(st.sampled_from(list(TYPES)), min_size=1, unique=True).map(tuple)
DERIVATIONS = st.builds(Derivation, CHOSEN, st.none() | SHALLOW)
ROWS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


# There and back


@given(DERIVATIONS)
def test_a_message_and_json_keep_everything(derivation: Derivation) -> None:
    check(derivation, COLUMNS, COMPARED)
    sent = to_message(derivation).SerializeToString()
    assert from_message(pb.Derivation.FromString(sent)) == derivation
    assert from_message(inflated(deflated(to_message(derivation)))) == derivation
    assert to_json(derivation) == MessageToDict(to_message(derivation)), "as protobuf writes it"
    assert from_json(json.loads(json.dumps(to_json(derivation)))) == derivation


def test_what_json_looks_like() -> None:
    """Receipts are kept for years: this text does not change."""
    negated = NotPredicate(ColumnPredicate("b", Operator.LESS, ("x",)))
    some = OrPredicate((ColumnPredicate("a", Operator.IN, ("1", "2")), negated))
    derivation = Derivation(("a",), AndPredicate((some, ColumnPredicate("c", Operator.IS_NULL))))
    written = (
        '{"columns": ["a"], "rows": {"every": {"parts": [{"some": {"parts": [{"comparison": '
        '{"column": "a", "operator": "IN", "values": ["1", "2"]}}, {"negated": {"comparison": '
        '{"column": "b", "operator": "<", "values": ["x"]}}}]}}, {"comparison": {"column": "c", '
        '"operator": "IS NULL"}}]}}}'
    )
    assert json.dumps(to_json(derivation)) == written
    assert from_json(json.loads(written)) == derivation


def test_which_parts_and_columns_it_has() -> None:
    both = AndPredicate(
        (ColumnPredicate("b", Operator.IS_NULL), ColumnPredicate("c", Operator.EQUAL, ("1",)))
    )
    assert Derivation().parts == frozenset()
    assert Derivation(("a",)).parts == {DerivablePart.COLUMNS}
    assert Derivation(None, both).parts == {DerivablePart.ROWS}
    assert Derivation(("a",), both).parts == {DerivablePart.COLUMNS, DerivablePart.ROWS}
    assert Derivation(("a",), both).names == frozenset("abc")
    assert Derivation(("a",)).names == frozenset("a")
    assert Derivation(None, both).names is None
    with pytest.raises(MalformedMessage, match="at least one column"):
        Derivation(())
    assert Comparable("a word of a newer source") is Comparable.NOTHING


# One form


@given(SHALLOW, ROWS)
def test_the_canonical_form_means_the_same(predicate: Predicate, row: dict[str, object]) -> None:
    found = canonical(predicate)
    assert truth(found, row, TYPES) is truth(predicate, row, TYPES)
    assert keeps(found, row, TYPES) is keeps(predicate, row, TYPES)
    assert canonical(found) == found
    assert depth(found) <= depth(predicate)
    assert len(list(comparisons(found))) <= len(list(comparisons(predicate)))


@given(SHALLOW, st.randoms(use_true_random=False))
def test_order_repetition_and_nesting_do_not_count(
    predicate: Predicate, draw: random.Random
) -> None:
    again = shuffled(predicate, draw)
    assert canonical(again) == canonical(predicate)
    assert text_of(canonical(again)) == text_of(canonical(predicate))
    assert canonical(NotPredicate(NotPredicate(predicate))) == canonical(predicate)
    assert canonical(NotPredicate(AndPredicate((NotPredicate(predicate),)))) == canonical(predicate)


@given(SHALLOW)
def test_the_text_is_that_of_the_reference(predicate: Predicate) -> None:
    said = to_json(Derivation(None, predicate))["rows"]
    assert text_of(canonical(predicate)) == derivations.canonical_text(said)


@given(SHALLOW, SHALLOW)
def test_two_forms_have_two_texts(one: Predicate, other: Predicate) -> None:
    one, other = canonical(one), canonical(other)
    assert (text_of(one) == text_of(other)) is (one == other)


def test_texts_cannot_be_made_to_collide() -> None:
    def text(column: str, *values: str) -> str:
        return text_of(canonical(ColumnPredicate(column, Operator.IN, values)))

    texts = [
        text("a", "1", "2"), text("a", "1', '2"), text('a" IN (', "1", "2"), text('a"', "1", "2"),
        text("a", "'", "2"), text("a", "''", "2"), text("a", "1"),
        text_of(ColumnPredicate("a", Operator.IS_NULL)),
        text_of(ColumnPredicate('a" IS NULL', Operator.IN, ("", "b"))),
    ]  # fmt: skip
    assert len(set(texts)) == len(texts)
    assert text("a", "1", "2") == "\"a\" IN ('1', '2')"


def test_the_recipe_of_a_derivation_is_another_one() -> None:
    whole = Recipe(COLUMNS, 1)
    rows = text_of(ColumnPredicate("n", Operator.EQUAL, ("7",)))
    assert Recipe(COLUMNS, 1, rows=rows).id != whole.id
    assert Recipe(COLUMNS, 1, rows="").id == whole.id


# Limits


def _deep(levels: int) -> Predicate:
    found: Predicate = ColumnPredicate("n", Operator.IS_NULL)
    for _ in range(levels - 1):
        found = NotPredicate(found)
    return found


@pytest.mark.parametrize(
    ("allowed", "too_much"),
    [
        (_deep(DERIVATION_DEPTH_MAX), _deep(DERIVATION_DEPTH_MAX + 1)),
        *[
            tuple(
                OrPredicate((ColumnPredicate("n", Operator.IS_NULL),) * n)
                for n in (limit, limit + 1)
            )
            for limit in [DERIVATION_COMPARISONS_MAX]
        ],
        *[
            tuple(
                ColumnPredicate("n", Operator.IN, tuple(map(str, range(n))))
                for n in (limit, limit + 1)
            )
            for limit in [DERIVATION_VALUES_MAX]
        ],
    ],
    ids=["levels", "comparisons", "literals"],
)
def test_limits(allowed: Predicate, too_much: Predicate) -> None:
    check(from_message(to_message(Derivation(None, allowed))), COLUMNS, COMPARED)
    with pytest.raises(LimitExceeded, match="A predicate has at most") as caught:
        check(Derivation(None, too_much), COLUMNS, COMPARED, where="orders")
    assert caught.value.where == "orders"
    with pytest.raises(LimitExceeded):
        check(from_message(to_message(Derivation(None, too_much))), COLUMNS, COMPARED)


def test_a_message_has_a_size() -> None:
    long = ColumnPredicate('no"te', Operator.EQUAL, ("x" * DERIVATION_BYTES_MAX,))
    with pytest.raises(LimitExceeded, match="65,536 bytes"):
        from_message(to_message(Derivation(None, long)))


def packed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def test_no_more_is_unpacked_than_a_message_may_have() -> None:
    """The longest one comes; what unpacks to more is refused before it does."""
    columns = ["x" * 1021] * 64
    assert pb.Derivation(columns=columns).ByteSize() == DERIVATION_BYTES_MAX
    assert inflated(deflated(pb.Derivation(columns=columns))).columns == columns
    one_more = pb.Derivation(columns=["x" * 1022, *columns[1:]])
    for much in (one_more.SerializeToString(), bytes(2 * DERIVATION_BYTES_MAX)):
        for cut in (0, 1):  # the end need not come
            with pytest.raises(LimitExceeded, match="65,536 bytes"):
                inflated(packed(much)[: len(packed(much)) - cut])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        packed(b"\x0a\x02id")[:-1],
        packed(b"\x0a\x02id") + b"x",
        packed(b"\x0a\x09id"),
        zlib.compress(b"\x0a\x02id"),
    ],
    ids=["nothing", "no stream", "cut short", "with more", "no message", "with zlib's header"],
)
def test_compressed_bytes_that_are_none(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="compressed derivation"):
        inflated(data)


@given(st.binary(max_size=300))
def test_random_bytes_are_unpacked_or_refused(data: bytes) -> None:
    for one in (data, packed(data)):
        with suppress(MalformedMessage):
            assert inflated(one).ByteSize() <= DERIVATION_BYTES_MAX


# What is refused

NOTHING_FOR_N = {**COMPARED, "n": Comparable.NOTHING}
EQUALITY_FOR_N = {**COMPARED, "n": Comparable.EQUALITY}
UNKNOWN = [
    (Derivation(("n", "absent")), COMPARED, "no column 'absent'"),
    (Derivation(None, ColumnPredicate("absent", Operator.IS_NULL)), COMPARED, "no column 'absent'"),
    (Derivation(None, ColumnPredicate("x" * 5000, Operator.IS_NULL)), COMPARED, "…|u2026"),
    (
        Derivation(None, ColumnPredicate("n", Operator.IS_NULL)),
        NOTHING_FOR_N,
        "IS NULL does not mean",
    ),
    (Derivation(None, ColumnPredicate("n", Operator.IS_NULL)), {}, "IS NULL does not mean"),
    (
        Derivation(None, ColumnPredicate("n", Operator.LESS, ("1",))),
        EQUALITY_FOR_N,
        "< does not mean",
    ),
]


@pytest.mark.parametrize(("derivation", "comparable", "said"), UNKNOWN)
def test_what_the_relation_does_not_compare(
    derivation: Derivation, comparable: dict[str, Comparable], said: str
) -> None:
    with pytest.raises(DerivationRefused, match=said) as caught:
        check(derivation, COLUMNS, comparable, where="orders")
    assert (caught.value.code, caught.value.exit_code) == ("DERIVE", 6)
    assert caught.value.where == "orders"
    assert len(caught.value.message) < 300


def test_equality_allows_equality() -> None:
    for operator, values in ((Operator.EQUAL, ("1",)), (Operator.NOT_EQUAL, ("1",)),
                             (Operator.IN, ("1", "2")), (Operator.IS_NULL, ())):  # fmt: skip
        check(Derivation(None, ColumnPredicate("n", operator, values)), COLUMNS, EQUALITY_FOR_N)


WRONG_VALUES = [
    ("n", Operator.EQUAL, ()), ("n", Operator.EQUAL, ("1", "2")), ("n", Operator.IN, ()),
    ("n", Operator.IS_NULL, ("1",)), ("n", Operator.EQUAL, ("one",)), ("n", Operator.LESS, ("",)),
]  # fmt: skip


@pytest.mark.parametrize(("column", "operator", "values"), WRONG_VALUES)
def test_literals_that_an_operator_cannot_have(
    column: str, operator: Operator, values: tuple[str, ...]
) -> None:
    with pytest.raises(MalformedMessage):
        check(Derivation(None, ColumnPredicate(column, operator, values)), COLUMNS, COMPARED)


def test_a_column_is_named_once() -> None:
    with pytest.raises(MalformedMessage, match="twice"):
        check(Derivation(("n", "n")), COLUMNS, COMPARED)


IS_LITERAL = {
    "int4": (["0", "-5", "2147483647"], ["-0", "05", "+5", "2147483648", " 5", "5.0", "٣", ""]),
    "int2": (["-32768"], ["32768", "1e3"]),
    "numeric(5,2)": (["1.00", "-1.00", "999.99"], ["1.0", "1", "NaN", "-0.00", "1000.00", ".50"]),
    "numeric(20,0)": (["18446744073709551615"], ["1.", "1e3", "Infinity"]),
    "numeric": ([], ["1", "NaN"]),
    "date": (["0001-01-01", "2020-02-29"], ["infinity", "0000-01-01", "10000-01-01", "-0043-03-15",
                                            "2019-02-29", "2020-1-1", "20200101"]),
    "timestamp": (["2020-01-01 00:00:00.5"], ["2020-01-01 00:00:00.50", "-infinity", "2020-01-01",
                                              "2020-01-01T00:00:00", "10000-01-01 00:00:00"]),
    "text": (["", "a", "😀", "'; DROP TABLE x; --", "%s ? $1 \\"], ["a\0", "\ud800"]),
    "bool": ([], ["true"]), "float8": ([], ["1.0"]),
    "timestamptz": ([], ["2020-01-01 00:00:00+00"]),
    "bytea": ([], ["00"]), "uuid": ([], ["123e4567-e89b-12d3-a456-426655440000"]),
    "oid": ([], ["1"]), "jsonb": ([], ["1"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("type", "text", "is_one"),
    [
        (parse_type(type), text, is_one)
        for type, (some, none) in IS_LITERAL.items()
        for is_one, texts in ((True, some), (False, none))
        for text in texts
    ],
)
def test_a_literal_has_one_spelling(type: DeclaredType, text: str, is_one: bool) -> None:
    assert is_literal(type, text) is is_one


def _of(**node: object) -> pb.Derivation:
    return pb.Derivation(rows=pb.Predicate(**node))  # type: ignore[arg-type]


MALFORMED = [
    _of(),
    _of(negated=pb.Predicate()),
    _of(every=pb.Predicates()),
    _of(some=pb.Predicates(parts=[pb.Predicate()])),
    _of(comparison=pb.Comparison(column="n")),
    _of(comparison=pb.Comparison(column="n", operator="LIKE", values=["%"])),
    _of(comparison=pb.Comparison(column="n", operator="is null")),
    _of(comparison=pb.Comparison(column="n", operator="= 1 OR 1 =", values=["1"])),
]


@pytest.mark.parametrize("message", MALFORMED)
def test_a_message_that_is_none(message: pb.Derivation) -> None:
    with pytest.raises(MalformedMessage):
        from_message(message)


NO_JSON: list[object] = [
    None, [], "x", 7, {"rows": 7}, {"rows": {}}, {"rows": {"every": []}}, {"column": ["a"]},
    {"columns": "ab"}, {"columns": [None]}, {"columns": ["\ud800"]}, {"columns": [7]},
    {"rows": {"comparison": {"column": "n", "operator": "=", "values": [7]}}},
    {"rows": {"comparison": {"column": "n", "operator": "IS NULL"}, "negated": {}}},
    {"rows": {"comparison": {"column": "n", "operator": ["="], "values": ["7"]}}},
    {"rows": {"comparison": {"column": "n\ud800", "operator": "IS NULL"}}},
    {"rows": {"comparison": {"operator": "IS NULL"}}}, {"rows": {"every": {"parts": []}}},
    {"rows": {"every": {"parts": {"0": {}}}}},
]  # fmt: skip


@pytest.mark.parametrize("facts", NO_JSON)
def test_json_that_is_none(facts: object) -> None:
    with pytest.raises(MalformedMessage):
        from_json(facts)


def test_deep_json_ends() -> None:
    facts: dict[str, object] = {"comparison": {"column": "n", "operator": "IS NULL"}}
    for _ in range(5000):
        facts = {"negated": facts}
    with pytest.raises((MalformedMessage, LimitExceeded)):
        from_json({"rows": facts})


def checked(message: pb.Derivation) -> Derivation | None:
    """The derivation, or None if it is refused by one of the errors that refuse one."""
    try:
        derivation = from_message(message)
        check(derivation, COLUMNS, COMPARED)
    except (MalformedMessage, LimitExceeded, DerivationRefused):
        return None
    return derivation


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_checked(data: bytes) -> None:
    try:
        message = pb.Derivation.FromString(data)
    except DecodeError:
        return
    derivation = checked(message)
    assert derivation is None or from_message(to_message(derivation)) == derivation


TEXTS = st.text(max_size=8)
NODES = st.recursive(
    st.builds(
        lambda column, operator, values: pb.Predicate(
            comparison=pb.Comparison(column=column, operator=operator, values=values)
        ),
        st.sampled_from([*TYPES, "absent"]) | TEXTS,
        st.sampled_from([operator.value for operator in Operator]) | TEXTS,
        st.lists(st.sampled_from([v for vs in LITERALS.values() for v in vs]) | TEXTS, max_size=3),
    )
    | st.just(pb.Predicate()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda p: pb.Predicate(every=pb.Predicates(parts=p))),
        st.lists(inner, max_size=4).map(lambda p: pb.Predicate(some=pb.Predicates(parts=p))),
        inner.map(lambda p: pb.Predicate(negated=p)),
    ),
    max_leaves=20,
)


@given(st.lists(st.sampled_from([*TYPES, "absent"]), max_size=3), NODES)
def test_random_messages_are_refused_or_mean_something(
    columns: list[str], rows: pb.Predicate
) -> None:
    derivation = checked(pb.Derivation(columns=columns, rows=rows))
    if derivation is None:
        return
    assert derivation.rows is not None
    row = {name: list(values)[1] for name, values in VALUES.items()}
    assert truth(canonical(derivation.rows), row, TYPES) is truth(derivation.rows, row, TYPES)

"""Values: what differs becomes bytes that differ and reads as written, or is refused by name.

Each engine has its own table of types (`Legacy.types`). A test takes those of one kind, so that its
name says what an engine got wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from driftline import errors
from driftline.values.types import parse_type

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Legacy
from source_agent.engines.conformance.reads import rows_of, session_of
from source_agent.engines.relations.shapes import Relation

_NUMBERS: Final = frozenset({"int2", "int4", "int8", "oid", "numeric"})
_FLOATS: Final = frozenset({"float4", "float8"})
_TIMES: Final = frozenset({"date", "time", "timetz", "timestamp", "timestamptz", "interval"})
_NAMED: Final = _NUMBERS | _FLOATS | _TIMES | {"text", "bytea"}
_TEXTS: Final = ("", " ", "a", "a ", " a", "a  ", "A", "NULL", "é", "e\u0301", "😀", "\u00a0")


def _kind(case: Case) -> str:
    return parse_type(case[1]).kind if case[1] else "timestamp"


def _wrong(legacy: Legacy, number: int, case: Case) -> list[str]:
    """Return what is wrong with a table of one column of this case."""
    declaration, declared, literals, texts = case
    table = legacy.sql(f'"t{number}"')
    column = legacy.sql(f'"id" INT NOT NULL PRIMARY KEY, "v" {declaration}{legacy.null}')
    rows = (f"({place}, {literal})" for place, literal in enumerate([*literals, "NULL"]))
    legacy.run(
        f"CREATE TABLE {table} ({column})", *(f"INSERT INTO {table} VALUES {row}" for row in rows)
    )
    with session_of(legacy) as session:
        shape = session.describe(Relation("t", table=f"t{number}"))
        values = _by_id(rows_of(session, shape))
        as_text = session.describe(Relation("t", table=f"t{number}", as_text=("v",)))
        spelled = _by_id(rows_of(session, as_text))
    written, wrong = str(shape.recipe.columns[1].type), []
    if declared and written != declared:
        wrong.append(f"{declaration}: declared {written}, not {declared}")
    if values[-1] is not None or spelled[-1] is not None:
        wrong.append(f"{declaration}: NULL is {values[-1]!r} and {spelled[-1]!r}")
    if len(set(values)) != len(values) or len(set(spelled)) != len(spelled):
        wrong.append(f"{declaration}: not all different: {values} {spelled}")
    if texts and values[:-1] != texts:
        wrong.append(f"{declaration}: {values[:-1]}, not {texts}")
    if as_text.recipe.columns[1].type.kind != "text":
        wrong.append(f"{declaration}: as_text is {as_text.recipe.columns[1].type}")
    if Capability.QUERIES not in legacy.lacks:
        query = legacy.sql(f'SELECT "id", "v" FROM "t{number}"')
        with session_of(legacy) as session:
            again = rows_of(session, session.describe(Relation("t", query=query, key=("id",))))
        if len({row[1] for row in again}) != len(values):
            wrong.append(f"{declaration}: a query does not tell the values apart")
    return wrong


def _by_id(rows: list[list[str | None]]) -> list[str | None]:
    return [row[1] for row in sorted(rows, key=lambda row: int(row[0] or 0))]


def _check(legacy: Legacy, chosen: Callable[[str], bool]) -> None:
    """Check the cases whose declared type is `chosen`; at least as many tables are made."""
    if Capability.SQL in legacy.lacks:  # its types are not SQL's, and tested by its own tests
        assert not legacy.types
        return
    legacy.run(*legacy.prelude)
    cases = [case for case in legacy.types if chosen(_kind(case))]
    wrong = [text for number, case in enumerate(cases) for text in _wrong(legacy, number, case)]
    assert wrong == []


def test_numbers_are_exact(legacy: Legacy) -> None:
    """Check integers and decimals."""
    _check(legacy, lambda kind: kind in _NUMBERS)


def test_floats_are_not_rounded(legacy: Legacy) -> None:
    """Check floating-point numbers, which differ in their last bit."""
    _check(legacy, lambda kind: kind in _FLOATS)


def test_text_is_neither_padded_nor_trimmed(legacy: Legacy) -> None:
    """Check types of text; CHAR(n) is what the engine's documents say, always alike."""
    _check(legacy, lambda kind: kind == "text")


def test_text_of_a_column_is_what_was_written(legacy: Legacy) -> None:
    """Check VARCHAR: spaces at both ends, no characters, letters beyond ASCII."""
    legacy.run(legacy.sql('CREATE TABLE "texts" ("id" INT NOT NULL PRIMARY KEY, "v" VARCHAR(20))'))
    legacy.insert("texts", list(enumerate(_TEXTS)))
    with session_of(legacy) as session:
        rows = rows_of(
            session, legacy.described(session, Relation("texts", table="texts", key=("id",)))
        )
    assert _by_id(rows) == list(_TEXTS)


def test_bytes_are_what_was_written(legacy: Legacy) -> None:
    """Check binary types: no decoding, no padding but the type's own."""
    _check(legacy, lambda kind: kind == "bytea")


def test_times_are_exact(legacy: Legacy) -> None:
    """Check dates, times and intervals, to the microsecond."""
    _check(legacy, lambda kind: kind in _TIMES)


def test_other_types_are_exact(legacy: Legacy) -> None:
    """Check the types that only some engines have."""
    _check(legacy, lambda kind: kind not in _NAMED)


def test_a_type_without_exact_values_is_refused(legacy: Legacy) -> None:
    """Check that it is refused by name, with `as_text` as the way out."""
    for number, declaration in enumerate(legacy.refused_types):
        legacy.run(
            legacy.sql(
                f'CREATE TABLE "r{number}" ("id" INT NOT NULL PRIMARY KEY, "v" {declaration})'
            )
        )
        with session_of(legacy) as session:
            with pytest.raises(errors.ConfigurationError, match="as_text") as caught:
                session.describe(Relation("things", table=f"r{number}"))
            assert "things.v" in str(caught.value), declaration
            rows_of(
                session,
                legacy.described(session, Relation("things", table=f"r{number}", as_text=("v",))),
            )


def test_a_value_that_does_not_fit_is_named(legacy: Legacy) -> None:
    """Check values that a column holds and its declared type does not: none is coerced."""
    for number, (declaration, literal, shown) in enumerate(legacy.refused):
        columns = f'"id" INT NOT NULL PRIMARY KEY, "v" {declaration}{legacy.null}'
        legacy.run(legacy.sql(f'CREATE TABLE "t{number}" ({columns})'))
        legacy.insert_unchecked(f"t{number}", "1, NULL", f"4711, {literal}")
        with session_of(legacy) as session:
            with pytest.raises(errors.ValueDoesNotFit) as caught:
                rows_of(session, legacy.described(session, Relation("things", table=f"t{number}")))
            text = str(caught.value)
            assert "things.v" in text, declaration
            assert "4711" in text, declaration
            assert 'as_text = ["v"]' in text, declaration
            assert shown.replace("x00", "\\x00") in text, declaration
            as_text = Relation("things", table=f"t{number}", as_text=("v",))
            assert len(rows_of(session, legacy.described(session, as_text))) == 2, declaration

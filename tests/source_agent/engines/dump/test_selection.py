"""The rows that a derivation chooses of a file are those that the slow reference keeps.

The reference is held against Spark and three databases in `tests/conformance/test_derivations.py`.
"""

from __future__ import annotations

import csv
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driftline import errors
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Comparable,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from source_agent.engines.conformance.reads import Read, decoded, flat
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.predicates import comparison_forms
from source_agent.engines.relations.shapes import Shape
from tests.reference.predicates import keeps, value_of
from tests.source_agent.engines.dump.folders import Accounts

TYPES = {
    "id": "int8",
    "small": "int2",
    "n": "int4",
    "amount": "numeric(9,2)",
    "wide": "numeric(38,10)",
    "day": "date",
    "moment": "timestamp",
    "name": "text",
    "ratio": "float8",
}
FORMAT = 'null = "-"\n[columns]\n' + "".join(f'{n} = "{t}"\n' for n, t in TYPES.items())
LITERALS: dict[str, list[str]] = {
    "id": ["-9223372036854775808", "-1", "0", "7", "9223372036854775807"],
    "small": ["-32768", "0", "32767"],
    "n": ["-2147483648", "-1", "0", "5", "2147483647"],
    "amount": ["-9999999.99", "-0.01", "0.00", "0.01", "1.50", "9999999.99"],
    "wide": ["-9999999999999999999999999999.9999999999", "0.0000000000", "0.0000000001"],
    "day": ["0001-01-01", "1999-12-31", "2000-02-29", "9999-12-31"],
    "moment": ["1999-12-31 23:59:59.999999", "2024-03-31 02:30:00"],
    "name": ["", " ", "a", "a ", "A", "ä", "a\u0308", "ß", "😀", "\uffff", "it's; --", "NULL"],
}


def columns() -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(LITERALS))


@st.composite
def comparisons(draw: st.DrawFn) -> Predicate:
    column = draw(columns())
    operator = draw(st.sampled_from(list(Operator)))
    if operator is Operator.IS_NULL:
        return ColumnPredicate(column, operator)
    count = draw(st.integers(1, 3)) if operator is Operator.IN else 1
    values = [draw(st.sampled_from(LITERALS[column])) for _ in range(count)]
    return ColumnPredicate(column, operator, tuple(values))


def _deeper(parts: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    some = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return parts.map(NotPredicate) | some.map(AndPredicate) | some.map(OrPredicate)


PREDICATES = st.recursive(comparisons(), _deeper, max_leaves=6)
ROWS = st.lists(
    st.tuples(
        *(
            st.sampled_from([*LITERALS.get(name, ["0.5"]), *([] if name == "id" else [None])])
            for name in TYPES
        )
    ),
    min_size=1,
    max_size=25,
)


def deliver(accounts: Accounts, rows: list[tuple[str | None, ...]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TYPES)
    writer.writerows(["-" if v is None else v for v in row] for row in rows)
    accounts.put(text.getvalue().encode())


def chosen(accounts: Accounts, derivation: Derivation) -> tuple[Shape, list[Read]]:
    engine = connect(f"dump:///{accounts.folder}", None, Limits())
    with closing(engine.open()) as session:
        shape = session.derive(session.describe(accounts.relation), derivation)
        return shape, [decoded(row, shape) for row in flat(session.scan(shape))]


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, predicate=PREDICATES)
def test_the_reference_keeps_the_same_rows(
    tmp_path: Path, rows: list[tuple[str | None, ...]], predicate: Predicate
) -> None:
    accounts = Accounts(tmp_path, FORMAT)
    deliver(accounts, rows)
    shape, found = chosen(accounts, Derivation(None, predicate))
    types = {c.name: c.type for c in shape.recipe.columns}

    def is_kept(row: tuple[str | None, ...]) -> bool:
        values: dict[str, Any] = {
            name: None if text is None else value_of(types[name], text)
            for name, text in zip(TYPES, row, strict=True)
            if name in LITERALS
        }
        return keeps(predicate, values, types)

    assert found == [list(row) for row in rows if is_kept(row)]


def test_columns_and_rows_are_chosen_together(tmp_path: Path) -> None:
    """The compared columns belong to the derivation; ranges of keys are of the chosen rows."""
    accounts = Accounts(tmp_path)
    accounts.put(
        b"id,name,balance\n" + b"".join(b"%d,n%d,%d.50\n" % (i, i % 3, i) for i in range(30))
    )
    derivation = Derivation(("name",), ColumnPredicate("balance", Operator.LESS, ("20.50",)))
    engine = connect(f"dump:///{tmp_path}", None, Limits())
    with closing(engine.open()) as session:
        whole = session.describe(accounts.relation)
        shape = session.derive(whole, derivation)
        bounds = np.array([5, 18], np.int64), np.array([6, 25], np.int64)
        ranges = flat(session.read_ranges(shape, *bounds))
        assert [decoded(row, shape)[0] for row in ranges] == ["5", "6", "18", "19"]
        only = session.derive(whole, Derivation(("name",)))
        assert [decoded(row, only) for row in flat(session.scan(only))][4] == ["4", "n1"]
        assert len(flat(session.scan(whole))) == 30


def test_types_that_spark_compares_otherwise_are_refused(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, FORMAT + 'free = "numeric"\n')
    row = ",".join(LITERALS.get(name, ["0.5"])[0] for name in TYPES)
    accounts.put(f"{','.join(TYPES)},free\n{row},1.50\n".encode())
    with closing(connect(f"dump:///{tmp_path}", None, Limits()).open()) as session:
        shape = session.describe(accounts.relation)
        by_name = shape.comparable_by_name
        for name in ("ratio", "free"):
            assert by_name.pop(name) is Comparable.NOTHING
            with pytest.raises(errors.DerivationRefused, match=f"'{name}'"):
                session.derive(shape, Derivation(None, ColumnPredicate(name, Operator.IS_NULL)))
        assert set(by_name.values()) == {Comparable.ORDER}


def test_the_dba_is_shown_what_may_be_compared(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path)
    accounts.put(b"id,name,balance\n1,x,2.50\n")
    with closing(connect(f"dump:///{tmp_path}", None, Limits()).open()) as session:
        forms = comparison_forms(session.describe(accounts.relation), session.capabilities.compare)
    assert forms[:3] == ['"id" {operator} ?', '"id" IN (?)', '"id" IS NULL']


def test_rows_of_parquet_are_chosen_too(tmp_path: Path) -> None:
    accounts = Accounts(
        tmp_path, 'kind = "parquet"\n[columns]\nid = "int8"\nn = "int4"\nname = "text"\n'
    )
    table = pa.table(
        {
            "id": pa.array(range(10), pa.int64()),
            "n": pa.array([None if i % 4 == 0 else i for i in range(10)], pa.int32()),
            "name": [f"n{i}" for i in range(10)],
        }
    )
    pq.write_table(table, tmp_path / "a-1.parquet")
    _, found = chosen(
        accounts, Derivation(None, NotPredicate(ColumnPredicate("n", Operator.IN, ("1", "3", "5"))))
    )
    assert [row[0] for row in found] == ["2", "6", "7", "9"]

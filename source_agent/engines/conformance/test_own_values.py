"""Own values: what a scan sends is what the driver itself returns for the column (`check --reads`).

An engine that shows no values of its driver (`own_values_of`) is reported as not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Legacy
from source_agent.engines.conformance.reads import filled
from source_agent.engines.own_values.comparison import ValueComparison, compare
from source_agent.engines.own_values.reading import own_values_of
from source_agent.engines.own_values.sampling import sample
from source_agent.engines.relations.shapes import Relation

_ROWS = 100
_QUOTED = ("a", "it's", '"', "%s", "?", "\\\\", "é", "~")


def _filled(legacy: Legacy, cases: Sequence[Case]) -> list[str]:
    """Make a table with a column of each case, and rows with every literal. Return the columns."""
    names = [f"v{number}" for number in range(len(cases))]
    columns = [
        f'"{name}" {declaration}{legacy.null}'
        for name, (declaration, *_) in zip(names, cases, strict=True)
    ]
    legacy.run(
        *legacy.prelude,
        legacy.sql(f'CREATE TABLE "all" ("id" INT NOT NULL PRIMARY KEY, {", ".join(columns)})'),
    )
    rows = [
        [literals[i % len(literals)] for _, _, literals, _ in cases] for i in range(_longest(cases))
    ]
    rows.append(["NULL"] * len(cases))
    into = legacy.sql('INSERT INTO "all" VALUES')
    legacy.run(*(f"{into} ({', '.join([str(i * 3 - 9), *row])})" for i, row in enumerate(rows)))
    return names


def _longest(cases: Sequence[Case]) -> int:
    return max(len(literals) for _, _, literals, _ in cases)


def _compared(legacy: Legacy, relation: Relation, rows: int = _ROWS) -> ValueComparison | None:
    engine = legacy.connect()
    with closing(engine.open()) as session:
        shape = session.describe(relation)
        own = own_values_of(engine, session)
        return None if own is None else compare(session, own, shape, rows)


def _wrong(comparison: ValueComparison) -> list[str]:
    """Return what differs in a comparison."""
    differing = [f"{c.name} {c.type}: {c.samples}" for c in comparison.columns if c.differing]
    return [*differing, *comparison.missing, *(["unpaired"] if comparison.unpaired else [])]


def test_reads_are_what_the_driver_returns(legacy: Legacy) -> None:
    """Check every type, in a table, as text, and in a query."""
    if Capability.SQL in legacy.lacks:
        assert not legacy.types
        return
    names = _filled(legacy, legacy.types)
    comparison = _compared(legacy, Relation("all", table="all"))
    if comparison is None:
        return
    assert _wrong(comparison) == []
    assert comparison.rows == _longest(legacy.types) + 1
    assert "every row" in comparison.how
    assert all(column.equal == comparison.rows for column in comparison.columns)
    assert sum(column.nulls for column in comparison.columns) >= len(names)
    as_text = _compared(legacy, Relation("all", table="all", as_text=tuple(names)))
    assert as_text is not None
    assert _wrong(as_text) == []
    if Capability.QUERIES not in legacy.lacks:
        query = Relation("all", query=legacy.sql('SELECT * FROM "all"'), key=("id",))
        of_query = _compared(legacy, query)
        assert of_query is not None
        assert _wrong(of_query) == []
        assert of_query.rows == comparison.rows


def test_a_sample_is_from_all_places_of_the_key(legacy: Legacy) -> None:
    """Check that the first and the last key are in it, and that no large part is without a row."""
    filled(legacy, 1000)
    if Capability.KEYS in legacy.lacks:
        return
    engine = legacy.connect()
    with closing(engine.open()) as session:
        shape = session.describe(Relation("items", table="items"))
        own = own_values_of(engine, session)
        if own is None:
            return
        chosen = sample(own, shape, 100)
        comparison = compare(session, own, shape, 100)
    keys = sorted(key[0] for key in chosen.keys or ())
    assert (keys[0], keys[-1]) == (0, 2997)
    assert 50 <= len(keys) <= 150
    assert max(b - a for a, b in pairwise(keys)) < 500
    assert _wrong(comparison) == []
    assert comparison.rows == len(keys)
    assert "by its index" in comparison.how


def test_rows_are_found_by_a_key_of_text(legacy: Legacy) -> None:
    """Check values that a text of SQL must quote."""
    if Capability.SQL in legacy.lacks or Capability.KEYS in legacy.lacks:
        return
    columns = f'"k" {legacy.text_key} NOT NULL PRIMARY KEY, "v" VARCHAR(9){legacy.null}'
    legacy.run(legacy.sql(f'CREATE TABLE "named" ({columns})'))
    legacy.insert("named", [(f"{_QUOTED[i % len(_QUOTED)]}{i:03}", f"v{i} ") for i in range(300)])
    comparison = _compared(legacy, Relation("named", table="named"), 60)
    assert comparison is None or (_wrong(comparison), comparison.rows >= 30) == ([], True)


def test_without_an_index_the_first_rows_are_compared(legacy: Legacy) -> None:
    """Check a key that no index has: the report says it."""
    filled(legacy, 300)
    if Capability.SQL in legacy.lacks:
        return
    comparison = _compared(legacy, Relation("items", table="items", key=("name",)), 50)
    assert comparison is None or (_wrong(comparison), comparison.rows) == ([], 50)
    assert comparison is None or "no index" in comparison.how

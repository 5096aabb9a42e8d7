"""Own values: what a scan sends is what the driver itself returns for the column (`check --reads`).

An engine that shows no values of its driver (`HasOwnValues`) is reported as not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Case, Legacy
from source_agent.engines.own_values.comparison import Comparison, compare
from source_agent.engines.own_values.reading import HasOwnValues
from source_agent.engines.shapes import Relation

_ROWS = 100


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


def _compared(legacy: Legacy, relation: Relation, rows: int = _ROWS) -> Comparison | None:
    engine = legacy.connect()
    with closing(engine.open()) as session:
        shape = session.describe(relation)
        if not isinstance(engine, HasOwnValues):
            return None
        return compare(session, engine.own_values(session), shape, rows)


def _wrong(found: Comparison) -> list[str]:
    """Return what differs in a comparison."""
    differing = [f"{c.name} {c.type}: {c.samples}" for c in found.columns if c.differing]
    return [*differing, *found.missing, *(["unpaired"] if found.unpaired else [])]


def test_reads_are_what_the_driver_returns(legacy: Legacy) -> None:
    """Check every type, in a table, as text, and in a query."""
    if Capability.SQL in legacy.lacks:
        assert not legacy.types
        return
    names = _filled(legacy, legacy.types)
    found = _compared(legacy, Relation("all", table="all"))
    if found is None:
        return
    assert _wrong(found) == []
    assert found.rows == _longest(legacy.types) + 1
    assert "every row" in found.how
    assert all(column.equal == found.rows for column in found.columns)
    assert sum(column.nulls for column in found.columns) >= len(names)
    as_text = _compared(legacy, Relation("all", table="all", as_text=tuple(names)))
    assert as_text is not None
    assert _wrong(as_text) == []
    if Capability.QUERIES not in legacy.lacks:
        query = Relation("all", query=legacy.sql('SELECT * FROM "all"'), key=("id",))
        of_query = _compared(legacy, query)
        assert of_query is not None
        assert _wrong(of_query) == []
        assert of_query.rows == found.rows

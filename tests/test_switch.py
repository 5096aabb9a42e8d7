"""A plan that turns out wrong switches midway: never much more than a compressed full copy.

Whatever was predicted and whatever changed, all messages of an exchange take at most 5 % and 16 kB
more than those of a full copy.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.exchange_pair import (
    COMPOSITE,
    INTEGER,
    Schema,
    Table,
    encode,
    exchange,
    fill,
    open_session,
)
from warehouse_agent.expect import Past, expect
from warehouse_agent.line import Line, Objective
from warehouse_agent.plan import partition_for
from warehouse_agent.prices import flat
from warehouse_agent.sizing import open_sketch

ROWS = 20_000
SLACK_BYTES, SLACK = 16_000, 1.05
PREDICTED = [0, 2_000, 20_000]
HAPPENED = [1, 2_000, 10_000, 20_000]


def table(schema: Schema, seed: int = 0) -> Table:
    dice = random.Random(seed)
    rows: Table = []
    for key in range(ROWS):
        text, blob = f"row {dice.randrange(10**6)}", dice.randbytes(12)
        rows.append((key * 3, text, blob) if schema is INTEGER else (f"k{key}", key, blob, text))
    return rows


def changed(schema: Schema, ours: Table, count: int, where: str) -> Table:
    dice = random.Random(count)
    at = set(range(count)) if where == "clustered" else set(dice.sample(range(ROWS), count))
    theirs: Table = []
    for number, row in enumerate(ours):
        if number not in at:
            theirs.append(row)
        elif schema is INTEGER:
            theirs.append((row[0], f"new {dice.randrange(10**6)}", dice.randbytes(12)))
        else:
            theirs.append((row[0], row[1], dice.randbytes(12), "new"))
    return theirs


@pytest.mark.parametrize("schema", [INTEGER, COMPOSITE], ids=["integer", "composite"])
@pytest.mark.parametrize("where", ["scattered", "clustered"])
@pytest.mark.parametrize("objective", list(Objective), ids=lambda o: o.value)
def test_never_much_more_than_a_full_copy(schema: Schema, where: str, objective: Objective) -> None:
    ours = table(schema)
    line = Line(objective=objective)
    for count in HAPPENED:
        theirs = changed(schema, ours, count, where)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "erp.db"
            fill(path, schema, theirs)
            with closing(open_session(path)) as session:
                full = exchange(session, schema.relation, [], line=line)
                assert full.outcome.is_copy, "a load is the price of a copy"
                for predicted in PREDICTED:
                    past = [Past(86_400.0, ROWS, 0, predicted, 0)] * 8
                    sketch = open_sketch(
                        rows=ROWS,
                        bounds=(0, 3 * ROWS) if schema is INTEGER else None,
                        expected=expect(past, rows=ROWS, elapsed_s=86_400.0),
                        prices=flat(full.pair.bytes / ROWS),
                        line=line,
                    )
                    knots = [3 * ROWS * i // 64 for i in range(65)]
                    partition = partition_for(knots, ROWS, integer_key=schema is INTEGER)
                    result = exchange(
                        session,
                        schema.relation,
                        ours,
                        partition=partition,
                        sketch=sketch,
                        line=line,
                        price=full.pair.bytes / ROWS,
                    )
                    most = SLACK * full.pair.bytes + SLACK_BYTES
                    said = (count, predicted, result.outcome.method, result.pair.bytes, most)
                    assert result.pair.bytes <= most, said
                    if not result.outcome.equal:
                        assert result.state() == Counter(encode(row) for row in theirs)

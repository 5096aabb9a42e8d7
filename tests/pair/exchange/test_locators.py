"""Changed rows are read where they lie, so one scan does; otherwise a second one is made.

Both halves against each other, as in `test_both_halves`, with a source that keeps where rows lie.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driftline.errors import DriftlineError
from driftline.reconciliation.ranges import from_quantiles, uniform
from driftline.rows.columns import gather
from driftline.rows.key_order import Key, key_text

from source_agent.engines.interface import Rows, Session
from source_agent.engines.relations.shapes import Shape
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.scan.locators import LocatorMemory
from source_agent.scan.reader import keys_of
from tests.harness.exchange_pair import (
    COMPOSITE,
    LOOSE,
    TEXT,
    Ours,
    Result,
    Schema,
    encode,
    exchange,
    fill,
    open_session,
)
from tests.pair.exchange.test_both_halves import edit, large, sketch_of, table_of
from warehouse_agent.planning.choice import Method

ROWS = 5000
ROWID = replace(COMPOSITE, ddl=COMPOSITE.ddl.removesuffix(" WITHOUT ROWID"))
SCHEMAS = {"loose": LOOSE, "composite": ROWID, "text": TEXT}
ENOUGH = 1 << 20


def compared(
    schema: Schema,
    changes: int,
    memory: LocatorMemory,
    *,
    method: Method = Method.SKETCH,
    fold: int = 4,
    wal: bool = False,
    wrap: Any = lambda session: session,
) -> Result:
    """One exchange; what came in is applied, and is the source's."""
    rows = large(ROWS, seed=1)
    alike = COMPOSITE if schema is ROWID else schema
    ours, theirs = table_of(alike, rows), table_of(alike, edit(rows, changes, seed=changes))
    partition = from_quantiles(sorted(rows)[::100], 1250) if schema is LOOSE else uniform(1250)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, schema, theirs, wal=wal)
        with closing(open_session(path)) as session:
            sketch = sketch_of(schema, rows, 2520, fold) if method is Method.SKETCH else None
            options: dict[str, Any] = {"forced": method, "sketch": sketch, "memory": memory}
            asked = wrap(session), schema.relation
            result = exchange(*asked, ours, partition=partition, **options)
            assert result.pair.is_done
    assert result.state() == Counter(encode(row) for row in theirs)
    assert result.outcome.method is method
    return result


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("method", [Method.SKETCH, Method.RANGE])
@pytest.mark.parametrize("changes", [1, 50, 120])
def test_one_scan_does(schema: str, method: Method, changes: int) -> None:
    """Keys of each kind that no index finds; and only what changed is read again."""
    memory = LocatorMemory(lambda: ENOUGH)
    result = compared(SCHEMAS[schema], changes, memory, method=method, wal=changes == 50)
    tally = result.pair.tally
    assert tally.scans == 1
    again = tally.rows_read - ROWS
    assert len(result.shipped()) <= again <= ROWS // 4 + changes
    if method is Method.SKETCH:
        assert again <= len(result.shipped()) + changes
    assert memory.taken == 0


@pytest.mark.parametrize("fold", [60, 2520, 0])
def test_more_cells_need_no_other_scan(fold: int) -> None:
    """Where readers block writers, the agent waits for cells without a transaction."""
    memory = LocatorMemory(lambda: ENOUGH)
    assert compared(ROWID, 50, memory, fold=fold).pair.tally.scans == 1
    assert memory.taken == 0


@pytest.mark.parametrize("most", [0, 1000, ROWS * 8])
@pytest.mark.parametrize("method", [Method.SKETCH, Method.RANGE])
def test_too_little_memory_costs_a_second_scan(most: int, method: Method) -> None:
    memory = LocatorMemory(lambda: most)
    assert compared(ROWID, 50, memory, method=method).pair.tally.scans == 2
    assert memory.taken == 0


def test_memory_that_another_scan_holds_is_not_there() -> None:
    memory = LocatorMemory(lambda: ENOUGH)
    assert memory.take(ENOUGH - 1000)
    assert compared(ROWID, 50, memory).pair.tally.scans == 2
    assert memory.taken == ENOUGH - 1000


def test_keys_are_scanned_alone_where_places_do_not_fit() -> None:
    """Then few rows are read by key; what was promised of the memory is kept."""
    for schema, most in ((ROWID, ROWS * 8), (COMPOSITE, ROWS * 12)):
        memory = LocatorMemory(lambda most=most: most)  # type: ignore[misc]
        result = compared(schema, 50, memory)
        assert result.pair.tally.scans == 2
        again, shipped = again_of(result, 50), len(result.shipped())
        assert shipped <= again <= shipped + 5
        assert memory.taken == 0
    many = compared(ROWID, 400, LocatorMemory(lambda: ROWS * 8))
    assert (many.pair.tally.scans, again_of(many, 400)) == (2, 0)


def again_of(result: Result, changes: int) -> int:
    """Return how many rows were read beside two whole scans."""
    theirs = edit(large(ROWS, seed=1), changes, seed=changes)
    return result.pair.tally.rows_read - 2 * len(theirs)


def test_many_rows_are_read_by_a_second_scan() -> None:
    """More than a quarter of the rows; nothing is read again where nothing changed."""
    memory = LocatorMemory(lambda: ENOUGH)
    assert compared(ROWID, 1600, memory, fold=1).pair.tally.scans == 2
    equal = compared(ROWID, 0, memory)
    assert (equal.pair.tally.scans, equal.pair.tally.rows_read) == (1, ROWS)
    assert memory.taken == 0


def test_places_are_kept_until_nothing_is_found() -> None:
    """To keep them makes a scan dearer; after a quiet time a change takes a second one, once."""
    memory = LocatorMemory(lambda: ENOUGH)
    scans = [compared(ROWID, changed, memory).pair.tally.scans for changed in (50, 0, 50, 50)]
    assert scans == [1, 1, 2, 1]
    assert memory.taken == 0


@pytest.mark.parametrize("method", [Method.SKETCH, Method.RANGE])
def test_what_has_no_rowid_is_read_by_its_keys(method: Method) -> None:
    """Up to a tenth of the rows, whose keys fit into the memory."""
    memory = LocatorMemory(lambda: ENOUGH)
    result = compared(COMPOSITE, 10, memory, method=method)
    assert result.pair.tally.scans == 1
    again = result.pair.tally.rows_read - ROWS
    assert len(result.shipped()) <= again <= ROWS // 10
    assert compared(COMPOSITE, 700, memory, fold=1).pair.tally.scans == 2
    few = LocatorMemory(lambda: 12 * ROWS)
    assert compared(COMPOSITE, 50, few, method=method).pair.tally.scans == 2
    assert (memory.taken, few.taken) == (0, 0)


class Moved:
    """A session that finds another row, or none, at the first locator or key of a read."""

    def __init__(self, session: Session, way: str) -> None:
        self._session, self._way = session, way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def capabilities(self) -> Any:
        return replace(self._session.capabilities, locators=self, read_keys=self.read_keys)

    def read_keys(
        self, shape: Shape, keys: Sequence[Key], *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        able = self._session.capabilities.read_keys
        assert able is not None
        others = [key for batch in self._session.scan(shape) for key in keys_in(batch, shape)]
        other = next(key for key in others if key not in keys)
        first = {"none": [], "twice": [keys[0]] * 2, "another": [other]}[self._way]
        for some in (list(keys[1:]), first[:1], first[1:]):
            yield from able(shape, some, rows_max=rows_max)

    def locate(self, shape: Shape) -> Any:
        able = self._session.capabilities.locators
        assert able is not None
        return able.locate(shape)

    def read_located(self, shape: Shape, locators: Any) -> Iterator[Rows]:
        able = self._session.capabilities.locators
        assert able is not None
        if self._way == "none":
            yield from able.read_located(shape, locators[1:])
            return
        if self._way == "twice":
            yield from able.read_located(shape, locators)
            yield from able.read_located(shape, locators[:1])
            return
        others = np.setdiff1d(np.arange(1, ROWS - 100, dtype=np.uint64), locators)
        yield from able.read_located(shape, np.append(locators[1:], others[:1]))


def keys_in(rows: Rows, shape: Shape) -> list[Key]:
    keys = keys_of(gather(rows), shape.recipe.key_columns).rows()
    return [key_text(key, shape.recipe) for key in keys]


@pytest.mark.parametrize("way", ["none", "another", "twice"])
@pytest.mark.parametrize("method", [Method.SKETCH, Method.RANGE])
@pytest.mark.parametrize("schema", [ROWID, COMPOSITE], ids=["places", "keys"])
def test_a_row_that_is_not_where_it_was_ends_the_exchange(
    schema: Schema, way: str, method: Method
) -> None:
    """Nothing is missed or sent in its place, and the memory is given back."""
    memory = LocatorMemory(lambda: ENOUGH)
    with pytest.raises(DriftlineError, match=r"Two reads of one snapshot|again"):
        compared(schema, 10, memory, method=method, wrap=lambda session: Moved(session, way))
    assert memory.taken == 0


def test_an_exchange_that_is_cut_gives_its_memory_back(tmp_path: Path) -> None:
    """While the warehouse thinks about a verdict, the places of all rows are held."""
    rows = large(ROWS, seed=1)
    ours, theirs = table_of(TEXT, rows), table_of(TEXT, edit(rows, 50, seed=50))
    fill(tmp_path / "erp.db", TEXT, theirs)
    memory = LocatorMemory(lambda: ENOUGH)
    with closing(open_session(tmp_path / "erp.db")) as session:
        shape = session.describe(TEXT.relation)
        encoded = [encode(row) for row in ours]
        for sketch in (None, sketch_of(TEXT, rows, 2520, 0)):
            opening = Ours(encoded, shape.recipe, uniform(1250), sketch).opening()
            comparison = Comparison(session, shape, opening, ReadCounts(), memory=memory)
            replies = comparison.answer(iter(()))
            assert next(replies).HasField("verdict")
            assert memory.taken > 8 * ROWS
            replies.close()
            assert memory.taken == 0

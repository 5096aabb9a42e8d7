"""Rows are read again where they lie, as a scan of the same snapshot told; or it says why not."""

from __future__ import annotations

import numpy as np
from driftline.arrays import U64

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.lacking import needs
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import flat, session_of
from source_agent.engines.interface import (
    BATCH_ROWS,
    LocatedRows,
    LocatorReads,
    Rows,
    Session,
    Unlocated,
)
from source_agent.engines.relations.shapes import Relation, Shape

COUNT = BATCH_ROWS + 300
PAIRS = Relation("pairs", table="pairs", key=("a", "b"))


def _filled(legacy: Legacy) -> None:
    columns = f'"a" {legacy.text_key} NOT NULL, "v" VARCHAR(40), "b" INT NOT NULL'
    legacy.run(legacy.sql(f'CREATE TABLE "pairs" ({columns}, PRIMARY KEY ("a", "b"))'))
    rows = [(f"k{i % 97}", None if i % 5 == 0 else f"näme {i}", i) for i in range(COUNT)]
    legacy.insert("pairs", rows)
    legacy.analyze("pairs")


def located_scan(session: Session, located: Shape) -> tuple[Rows, U64]:
    """Return the rows of a scan, and the locator of each, uint64 [rows]."""
    rows: Rows = []
    locators = [np.zeros(0, np.uint64)]
    for batch in session.scan(located):
        assert isinstance(batch, LocatedRows), "a located shape is read with locators"
        assert len(batch.locators) == len(batch)
        rows += batch
        locators.append(batch.locators)
    return rows, np.concatenate(locators)


def read_at(able: LocatorReads, located: Shape, locators: U64) -> Rows:
    """Return the rows at these locators, uint64 [n], in any order."""
    return flat(able.read_located(located, np.sort(locators)))


@needs(Capability.KEYS)
def test_rows_are_read_where_they_lie(legacy: Legacy) -> None:
    """Check the rows of a located scan, and all, some and none of them read again."""
    _filled(legacy)
    with session_of(legacy) as session:
        shape, able = legacy.described(session, PAIRS), session.capabilities.locators
        located = Unlocated("") if able is None else able.locate(shape)
        if able is None or isinstance(located, Unlocated):
            assert able is None or located.why, "it says why"
            return
        plain = sorted(flat(session.scan(shape)))
        rows, locators = located_scan(session, located)
        assert sorted(rows) == plain, "the bytes of rows are the same"
        assert len(np.unique(locators)) == COUNT
        for step in (1, 7, 1000):
            assert sorted(read_at(able, located, locators[::step])) == sorted(rows[::step])
        assert read_at(able, located, locators[:0]) == []
        assert sorted(flat(session.scan(shape))) == plain, "the session reads on as before"


@needs(Capability.KEYS, Capability.SNAPSHOT)
def test_locators_stay_while_a_writer_writes(legacy: Legacy) -> None:
    """Check that a snapshot has its rows where they were, whatever is written between."""
    _filled(legacy)
    with session_of(legacy) as session:
        shape, able = legacy.described(session, PAIRS), session.capabilities.locators
        located = Unlocated("") if able is None else able.locate(shape)
        if able is None or isinstance(located, Unlocated):
            assert able is None or located.why, "it says why"
            return
        rows, locators = located_scan(session, located)
        for value in "xyz":
            legacy.run(legacy.sql(f"""UPDATE "pairs" SET "v" = '{value}'"""))
            legacy.analyze("pairs")
        legacy.run(
            legacy.sql('DELETE FROM "pairs" WHERE "b" < 3000'),
            legacy.sql("""INSERT INTO "pairs" VALUES ('new', 'new', -1)"""),
        )
        session.pause()
        assert sorted(read_at(able, located, locators)) == sorted(rows)
        assert session.snapshot.generation == 0
    with session_of(legacy) as session:
        assert len(flat(session.scan(legacy.described(session, PAIRS)))) == COUNT - 3000 + 1

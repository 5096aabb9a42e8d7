"""A session reads one snapshot, and cannot write."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from driftline import errors
from driftline.relations.derivations import Comparable

from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.lacking import needs
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    filled,
    flat,
    multiset,
    rows_of,
    session_of,
)
from source_agent.engines.interface import BATCH_ROWS
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Consistency, Relation

ITEMS: Final = Relation("items", table="items", key=("id",))


@needs(Capability.SNAPSHOT)
def test_a_snapshot_stays_while_a_writer_writes(legacy: Legacy) -> None:
    """Check a scan in whose middle somebody deletes, updates and inserts."""
    expected = filled(legacy, BATCH_ROWS + 100)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS)
        batches = session.scan(shape)
        rows = next(batches)
        legacy.run(
            legacy.sql('DELETE FROM "items" WHERE "id" < 3000'),
            legacy.sql("""UPDATE "items" SET "name" = 'changed'"""),
            legacy.sql("""INSERT INTO "items" VALUES ('new', -1, 'new', 0)"""),
        )
        session.pause()
        rows = rows + flat(batches)
        assert multiset([decoded(r, shape) for r in rows]) == multiset(expected)
        bounds = np.array([-9], np.int64), np.array([2999], np.int64)
        assert len(flat(session.read_ranges(shape, *bounds))) == 1000
        assert session.snapshot.consistency is Consistency.EXACT
        assert session.snapshot.generation == 0
    with session_of(legacy) as session:
        assert len(rows_of(session, legacy.described(session, ITEMS))) == BATCH_ROWS + 100 - 999


@needs(Capability.SNAPSHOT)
def test_two_scans_of_a_session_are_of_one_instant(legacy: Legacy) -> None:
    """Check that a later statement of a session sees nothing newer."""
    expected = filled(legacy, 10)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS)
        flat(session.scan(shape))
        legacy.run(legacy.sql('DELETE FROM "items" WHERE "id" = 3'))
        again = rows_of(session, shape)
    assert multiset(again) == multiset(expected)


def test_a_session_says_its_time(legacy: Legacy) -> None:
    """Check the form of `as_of`: ISO 8601 in UTC."""
    with session_of(legacy) as session:
        as_of = session.snapshot.as_of
    assert as_of.startswith("20")
    assert as_of.endswith("Z")


def test_an_interrupted_session_reads_no_more(legacy: Legacy) -> None:
    """Check that `interrupt` ends a scan with an error, and lets nothing begin."""
    filled(legacy, BATCH_ROWS * 3)
    with session_of(legacy) as session:
        shape = legacy.described(session, ITEMS)
        batches = session.scan(shape)
        next(batches)

        def everything() -> None:
            flat(batches)
            flat(session.scan(shape))

        session.interrupt()
        with pytest.raises(errors.DriftlineError):
            everything()


WRITES: Final = (
    """INSERT INTO "items" VALUES ('x', -7, 'x', 0)""",
    """UPDATE "items" SET "name" = 'x'""",
    'DELETE FROM "items"',
    'DROP TABLE "items"',
    'CREATE TABLE "more" ("a" INT)',
)


@pytest.mark.parametrize("write", WRITES)
@needs(Capability.READ_ONLY)
def test_the_session_cannot_write(legacy: Legacy, write: str) -> None:
    """Check that the database refuses a write in the session's transaction."""
    expected = filled(legacy, 3)
    with session_of(legacy) as session:
        with pytest.raises((*legacy.write_errors, errors.DriftlineError)) as caught:
            legacy.write(session, legacy.sql(write))
        text = str(caught.value).lower()
        assert any(w in text for w in ("read-only", "read only", "readonly", "not authorized"))
    with session_of(legacy) as session:
        assert multiset(rows_of(session, legacy.described(session, ITEMS))) == multiset(expected)


@pytest.mark.parametrize("write", WRITES)
@needs(Capability.READ_ONLY_CONNECTION)
def test_the_connection_cannot_write(legacy: Legacy, write: str) -> None:
    """Check outside the transaction, on the connection as the driver was told to open it."""
    expected = filled(legacy, 3)
    with (
        session_of(legacy) as session,
        pytest.raises(legacy.write_errors, match=r"(?i)read.?only"),
    ):
        legacy.raw_write(session, legacy.sql(write))
    with session_of(legacy) as session:
        assert multiset(rows_of(session, legacy.described(session, ITEMS))) == multiset(expected)


def test_nothing_of_a_closed_session_stays(legacy: Legacy) -> None:
    """Check that a session is in no cycle: its memory is free at once, not at some time."""
    filled(legacy, 100)
    engine = engine_of(legacy)

    def use() -> type:
        session = engine.open()
        try:
            with suppress(errors.DriftlineError):
                session.describe(Relation("gone", table="gone", key=("id",)))
            shape = legacy.described(session, ITEMS)
            flat(session.scan(shape))
            abandoned = session.scan(shape)
            next(abandoned)
        finally:
            session.close()
        return type(session)

    kind = use()
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        use()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [each for each in gc.garbage if isinstance(each, (kind, errors.DriftlineError))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()
    assert not kept


def test_shapes_promise_what_the_session_can(legacy: Legacy) -> None:
    """Check that no relation is said to be read in a way that the session does not offer."""
    columns = f'"code" {legacy.text_key} NOT NULL PRIMARY KEY, "n" INT'
    legacy.run(legacy.sql(f'CREATE TABLE "codes" ({columns})'))
    relation = Relation("codes", table="codes", key=("code",))
    with session_of(legacy) as session:
        shape, can = legacy.described(session, relation), session.capabilities
        assert can.read_between is not None or shape.unordered
        assert can.read_keys is None or can.read_between is not None
        assert can.hash_keys is not None or not plan_of(shape).key_hash
        assert can.compare is not None or set(shape.comparable) == {Comparable.NOTHING}
        assert can.markers is not None or not shape.marking
        if can.markers is None:
            marked = replace(shape.relation, marker=Marker("n"))
            with pytest.raises(errors.ConfigurationError):
                session.describe(marked)

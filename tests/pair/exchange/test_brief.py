"""An exchange that leaves out what is not needed finds the same, and estimates the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.reconciliation.ranges import uniform
from driftline.relations.derivation_messages import from_message, inflated, to_message
from driftline.relations.derivations import Derivation
from driftline.rows.digests import Digest
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire.negotiation import BRIEF, DEFLATE, Agreement

from tests.harness.exchange_pair import (
    AGREED,
    BRIEFLY,
    COMPOSITE,
    INTEGER,
    KEY,
    SALT,
    Result,
    Schema,
    Table,
)
from tests.pair.exchange.test_both_halves import edit, large, run, sketch_of, table_of
from warehouse_agent.methods import registry
from warehouse_agent.methods.conversation import ExchangeTerms
from warehouse_agent.methods.ranges import slots_that_differ
from warehouse_agent.planning.choice import Choice, Disagreement, Method, choose
from warehouse_agent.planning.sketch_size import Sketch

ROWS = large(5000, seed=1)
EDITS = {"nothing": 0, "one": 1, "some": 50, "many": 3000}


@contextmanager
def noted() -> Iterator[list[Disagreement]]:
    """Collect what is known at each choice of a continuation."""
    found = list[Disagreement]()

    def chosen(at: Disagreement, *given: Any) -> Choice:
        found.append(at)
        return choose(at, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "choose", chosen)
        yield found


def both(schema: Schema, theirs: Table, **options: Any) -> tuple[Result, Result]:
    """The same exchange at length and briefly; what a verdict tells is the same."""
    ours, results, estimates = table_of(schema, ROWS), [], []
    for agreed in (AGREED, BRIEFLY):
        with noted() as found:
            results.append(run(schema, ours, theirs, agreed=agreed, **options))
        estimates.append([at.differing for at in found])
    assert estimates[0][:1] == estimates[1][:1]
    return results[0], results[1]


@pytest.mark.parametrize("schema", [INTEGER, COMPOSITE], ids=["integer", "composite"])
@pytest.mark.parametrize("changes", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("later", [False, True], ids=["", "later"])
def test_a_sketch(schema: Schema, changes: int, later: bool) -> None:
    theirs = table_of(schema, edit(ROWS, changes, seed=changes))
    for fold in (4, 60, 0):
        sketch = sketch_of(schema, ROWS, 2520, fold)
        sketch = Sketch(sketch.embedding, sketch.third, fold, stalls=False)
        long, brief = both(schema, theirs, sketch=sketch, later=later)
        said = [reply.verdict for reply in brief.pair.received if reply.HasField("verdict")]
        assert all(bool(one.differing) != bool(one.strata) for one in said)
        assert not any(one.sample for one in said)
        assert said or brief.pair.bytes < long.pair.bytes


def test_only_a_sketch_that_is_expected_to_stall_has_strata() -> None:
    theirs = table_of(INTEGER, edit(ROWS, 3000, seed=3))
    sketch = sketch_of(INTEGER, ROWS, 2520, 0)
    long, brief = both(INTEGER, theirs, sketch=sketch)
    assert brief.outcome.round_trips == long.outcome.round_trips
    (said, *_) = [r.verdict for r in brief.pair.received if r.HasField("verdict")]
    assert said.differing
    assert not said.strata


def test_an_empty_list_of_deleted_keys_is_left_out() -> None:
    updated = ROWS | dict.fromkeys([*ROWS][:9], ("new", b""))
    deleted = {key: row for key, row in ROWS.items() if key != min(ROWS)}
    sketch = sketch_of(INTEGER, ROWS, 2520, 4)
    for rows, has_list in ((updated, False), (deleted, True)):
        long, brief = both(INTEGER, table_of(INTEGER, rows), sketch=sketch)
        assert "deleted" in long.pair.kinds()
        assert ("deleted" in brief.pair.kinds()) == has_list
        assert brief.outcome.method is Method.SKETCH


@pytest.mark.parametrize("changes", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("method", [Method.RANGE, Method.FULL])
def test_ranges(changes: int, method: Method) -> None:
    theirs = table_of(INTEGER, edit(ROWS, changes, seed=changes))
    long, brief = both(INTEGER, theirs, forced=method)
    said = [reply.verdict for reply in brief.pair.received if reply.HasField("verdict")]
    assert all(one.strata and not one.differing for one in said)
    assert long.pair.kinds() == brief.pair.kinds()
    assert changes or brief.pair.bytes < long.pair.bytes


def test_a_load() -> None:
    results = [run(INTEGER, [], table_of(INTEGER, ROWS), agreed=a) for a in (AGREED, BRIEFLY)]
    assert results[1].pair.bytes < results[0].pair.bytes


def test_a_derivation_is_compressed_where_that_is_shorter_and_asked_for() -> None:
    names = tuple(f"customer_{i}" for i in range(9))
    long, short = Derivation(names), Derivation(("id",))
    recipe = Recipe((Column("id", parse_type("int8"), False, 0),), 1, 1)
    for features in ((BRIEF,), (BRIEF, DEFLATE)):
        for derivation in (long, short, None):
            terms = ExchangeTerms(
                "t", recipe, KEY, SALT, 3, Agreement(features=features), derivation=derivation
            )
            said = terms.opening(Digest(), uniform(1)).open
            is_compressed = features[-1] == DEFLATE and derivation is long
            assert bool(said.deflated) == (DEFLATE in said.features) == is_compressed
            assert said.HasField("derivation") == (derivation is not None and not is_compressed)
            if is_compressed:
                assert from_message(inflated(said.deflated)) == long
                assert len(said.deflated) < to_message(long).ByteSize() / 2


def test_strata_of_another_number_of_slots_are_refused() -> None:
    ours = run(INTEGER, table_of(INTEGER, ROWS), table_of(INTEGER, ROWS)).ours
    digests = ours.sums.short_digests()
    for data in (b"x", bytes(31), bytes(64)):
        with pytest.raises(MalformedMessage, match="strata"):
            slots_that_differ(pb.Verdict(strata=data), digests[:16], SALT)
    assert slots_that_differ(pb.Verdict(differing=7), digests, SALT) == 7

"""The comparison of groups through both agents against the paper's three steps.

Algorithm 2 as printed never compares the last group; the product compares all of them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.exchange_pair import INTEGER, Groups, Result, Table, encode, fill, open_session
from tests.harness.exchange_pair import exchange as exchanged
from tests.reference import group_comparison as reference
from warehouse_agent.planning.sketch_size import embedding_for

Rows = dict[int, tuple[object, ...]]
SIZES = st.sampled_from([1, 2, 3, 5, 50])


def table(rows: reference.Relation) -> Table:
    return [(key, str(row[0]), None) for key, row in sorted(rows.items())]


def plan_of(rows: reference.Relation, size: int) -> list[list[int]]:
    keys = sorted(rows)
    return [keys[at : at + size] for at in range(0, len(keys), size)]


def compared(ours: Rows, theirs: Rows, size: int) -> Result:
    """Compare by groups of so many keys, through both agents and a SQLite file."""
    groups = Groups(embedding_for(len(ours), (min(ours), max(ours))), (size,), row_bytes=9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "erp.db"
        fill(path, INTEGER, table(theirs))
        with closing(open_session(path)) as session:
            return exchanged(session, INTEGER.relation, table(ours), groups=groups)


@pytest.mark.parametrize("size", [1, 4, 20])
def test_an_update_in_the_last_group(size: int) -> None:
    """The printed lines miss it, at every size of groups; the repaired ones and ours do not."""
    ours: Rows = dict.fromkeys(range(20), ("old",))
    theirs = ours | {19: ("new",)}
    plan = plan_of(ours, size)
    printed = reference.extract(theirs, ours, plan, reference.identify_update)
    assert printed.updated == {}
    assert reference.apply(printed, ours) == ours != theirs
    repaired = reference.extract(theirs, ours, plan, reference.identify_update_of_all)
    assert set(repaired.updated) == set(plan[-1])
    assert reference.apply(repaired, ours) == theirs
    result = compared(ours, theirs, size)
    assert result.state() == Counter(map(encode, table(theirs)))


@st.composite
def edited(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """A snapshot of at least one row, and the remote rows after some edits."""
    values = st.tuples(st.sampled_from("abc"))
    ours: Rows = dict(draw(st.dictionaries(st.integers(0, 60), values, min_size=1, max_size=30)))
    theirs = dict(ours)
    for key in draw(st.lists(st.sampled_from(sorted(ours)), unique=True)):
        if draw(st.booleans()):
            theirs[key] = draw(values)
        else:
            del theirs[key]
    return ours, {**draw(st.dictionaries(st.integers(0, 90), values, max_size=5)), **theirs}


@given(edited(), SIZES)
@examples(60)
def test_ours_is_the_repaired_extraction(drawn: tuple[Rows, Rows], size: int) -> None:
    """Where the printed extraction is right, and where it is not."""
    ours, theirs = drawn
    plan = plan_of(ours, size)
    repaired = reference.extract(theirs, ours, plan, reference.identify_update_of_all)
    assert reference.apply(repaired, ours) == theirs
    printed = reference.extract(theirs, ours, plan, reference.identify_update)
    missed = {k for k in repaired.updated if k in plan[-1]}
    assert set(repaired.updated) - set(printed.updated) == missed
    result = compared(ours, theirs, size)
    assert result.state() == Counter(map(encode, table(theirs)))
    assert result.outcome.is_equal == (ours == theirs)

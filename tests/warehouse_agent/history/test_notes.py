"""Notes: what is written comes back, what is damaged is missing, what is not known stays."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.relations.activity import CountedActivity, FlaggedActivity, UnknownActivity
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.history.marks import KeptMark
from warehouse_agent.history.notes import (
    ComparisonNote,
    HeadNote,
    MarkNote,
    NeedNote,
    NextPartNote,
    Notes,
    Quantiles,
    UncomparedNote,
    VersionNote,
    note_damage,
)
from warehouse_agent.history.view_notes import ValidInputsNote, ViewNotes
from warehouse_agent.json_values import GREATEST, LEAST
from warehouse_agent.planning.group_selection import GroupSizes
from warehouse_agent.planning.marker_state import MarkerAudit
from warehouse_agent.planning.prices import LearntPrices
from warehouse_agent.planning.view_cost import FACTOR_LEAST, FACTOR_MOST, PHASES
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot, VersionRecord

TABLE = "0b52daa1-6db8-4184-b886-062571c36e9b"
AT, LATER = "2026-01-02T03:04:05Z", "2026-01-02T05:00:00.125Z"

texts = st.text(max_size=8)
amounts = st.none() | st.floats(LEAST, GREATEST)
counts = st.integers(0, 1 << 40)
moments = st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat(timespec="seconds"))
activities = st.one_of(
    st.none(),
    st.builds(CountedActivity, texts, counts),
    st.builds(FlaggedActivity, texts, texts),
    st.builds(UnknownActivity, texts),
)
markings = st.builds(
    KeptMark,
    st.binary(max_size=9),
    texts,
    st.booleans(),
    st.none() | st.builds(MarkerAudit, texts, st.none() | texts, counts, counts),
    counts,
    counts,
    st.tuples(texts),
    texts,
)
policies = st.builds(PolicyDigests, texts, st.dictionaries(st.tuples(texts, texts), texts))
positions = st.integers(POSITION_MIN, POSITION_MAX)
group_sizes = st.builds(
    lambda groups, more, alone, key_bytes, is_named: GroupSizes(
        groups + more + alone, groups, alone, key_bytes, is_named
    ),
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.floats(LEAST, GREATEST),
    st.booleans(),
)


def of_version(said: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.builds(VersionNote, counts, said)


notes = st.builds(
    Notes,
    checked=of_version(st.builds(ComparisonNote, moments, moments, texts, activities, texts)),
    head=st.none() | st.builds(HeadNote, texts, counts, st.booleans()),
    damaged=st.dictionaries(texts, texts, max_size=3),
    part=of_version(
        st.builds(UncomparedNote, counts, st.none() | st.floats(0, GREATEST), st.none() | texts)
    ),
    wish=st.none() | st.builds(NeedNote, texts, texts),
    mark=st.none() | st.builds(MarkNote, counts, texts, markings),
    marker_time=texts,
    row_security=of_version(policies),
    prices=st.builds(LearntPrices, **{one.name: amounts for one in fields(LearntPrices)}),
    rows_per_s=amounts,
    keys_per_s=amounts,
    turn=st.builds(
        NextPartNote,
        st.none() | positions,
        st.none() | st.lists(texts).map(tuple),
        amounts,
        st.none() | group_sizes,
    ),
    quantiles=st.none()
    | st.builds(
        Quantiles, st.lists(positions, min_size=1).map(lambda p: tuple(sorted(p))), counts, texts
    ),
    others=st.dictionaries(texts.map("new {}".format), st.none() | texts | counts, max_size=2),
)


@st.composite
def currents(draw: st.DrawFn) -> ValidInputsNote:
    inputs = draw(st.dictionaries(texts, counts, max_size=3))
    stamps = {name: draw(texts) for name in inputs}
    return ValidInputsNote(draw(texts), draw(st.none() | texts), inputs, stamps, draw(counts))


view_notes = st.builds(
    ViewNotes,
    st.none() | texts,
    st.none() | currents(),
    st.dictionaries(
        st.sampled_from([phase for phases in PHASES.values() for phase in phases]),
        st.floats(FACTOR_LEAST, FACTOR_MOST),
    ),
    st.dictionaries(texts.map("new {}".format), st.none() | texts | counts, max_size=2),
)


@given(notes)
def test_what_is_written_comes_back(one: Notes) -> None:
    assert Notes.from_json(json.loads(json.dumps(one.to_json()))) == one


@given(view_notes)
def test_what_is_written_of_a_view_comes_back(one: ViewNotes) -> None:
    assert ViewNotes.from_json(json.loads(json.dumps(one.to_json()))) == one


WHOLE = Notes(
    checked=VersionNote(3, ComparisonNote(AT, LATER, "exact", CountedActivity("ab", 7))),
    head=HeadNote(TABLE, 3),
    damaged={"data-1/0.parquet": "damaged"},
    part=VersionNote(3, UncomparedNote(1234, 5.5, "no scan")),
    wish=NeedNote("ab", "cd"),
    mark=MarkNote(3, LATER, KeptMark(b"mark", audit=MarkerAudit(AT, None, 3, 1, ("7",), 1))),
    marker_time="changed_at",
    row_security=VersionNote(3, PolicyDigests("ab", {("orders", "mine"): "cd"})),
    prices=LearntPrices(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 12.0),
    rows_per_s=7.0,
    keys_per_s=8.0,
    turn=NextPartNote(17, ("a", "1"), 9.5, GroupSizes(900, 80, 20, 0.5)),
    quantiles=Quantiles((1, 5, 9), 100, "id"),
)
WHOLE_VIEW = ViewNotes("a", ValidInputsNote("a", "17", {"t": 3}, {"t": "x"}, 2), {"join": 2.0})
DAMAGED: st.SearchStrategy[object] = (
    st.sampled_from([0, -1, 1, 3, 64, 1e-300, 1e300, 10**400, math.nan, math.inf, True])
    | st.sampled_from([None, "12", "", [], {}, [None], [3, 2], [1, 2.5], [1 << 70], [1, 5, 9]])
    | st.sampled_from([{"version": 3}, {"version": True}, {"files": []}, {"files": {"a": 1}}])
)


@st.composite
def damaged(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """Damage some of the values, and some within them."""
    for key in draw(st.lists(st.sampled_from(sorted(body)), min_size=1)):
        inner = body[key]
        if isinstance(inner, dict) and inner and draw(st.booleans()):
            body = body | {key: inner | {draw(st.sampled_from(sorted(inner))): draw(DAMAGED)}}
        else:
            body = body | {key: draw(DAMAGED)}
    return body


@given(damaged(WHOLE.to_json()), damaged(WHOLE_VIEW.to_json()))
def test_what_is_damaged_is_missing(body: dict[str, Any], of_view: dict[str, Any]) -> None:
    """Whatever it is: it is no error, and what is read can be written and asked for."""
    found, view = Notes.from_json(body), ViewNotes.from_json(of_view)
    assert Notes.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert ViewNotes.from_json(json.loads(json.dumps(view.to_json()))) == view
    said = found.comparison(version(3))
    assert (said.as_of, said.checked_at) in {(AT, LATER), (AT, AT)}
    assert found.turn.position is None or type(found.turn.position) is int


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checked", {"version": 3, "as_of": "today", "checked_at": AT, "consistency": "exact"}),
        ("checked", {"version": 3, "as_of": AT[:-1], "checked_at": AT, "consistency": "exact"}),
        ("checked", {"version": "3", "as_of": AT, "checked_at": AT, "consistency": "exact"}),
        ("head", {"table": 1, "version": 3}),
        ("damaged", {"files": ["data-1/0.parquet"]}),
        ("part", {"version": 3, "rows_left": "many"}),
        ("mark", {"version": 3}),
        ("wish", ["ab"]),
        ("row_security", {"version": 3, "digest": "ab"}),
        ("quantiles", [9, 5]),
        ("turn_from_key", "abc"),
        ("turn_from", 1 << 70),
        ("rows_per_s", -1.0),
        ("groups", {"compared": 9, "groups": 9, "alone": 1, "key_bytes": 1.0, "is_named": True}),
        ("groups", {"compared": 9, "groups": 2.5, "alone": 1, "key_bytes": 1.0, "is_named": True}),
        ("groups", {"compared": 9, "groups": 2, "alone": 1, "key_bytes": -1.0, "is_named": True}),
        ("phase_factors", {"join": "x"}),
        ("phase_factors", {"join": -1.0}),
        ("current", {"version": "a", "inputs": {"t": 3}, "made_of": {}}),
    ],
)
def test_a_value_that_is_not_possible_is_as_if_it_were_not_there(key: str, value: object) -> None:
    whole = WHOLE.to_json() | WHOLE_VIEW.to_json()
    without = {k: v for k, v in whole.items() if k != key}
    for kind in (Notes, ViewNotes):
        found, missing = kind.from_json(whole | {key: value}), kind.from_json(without)
        assert replace(found, others={}) == replace(missing, others={})


def test_what_another_release_wrote_stays(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    body = WHOLE.to_json() | {"of_tomorrow": {"version": 3, "more": [1]}}
    store.write(json.dumps(body).encode(), PRIVATE, "fragments", "t.json")
    found = Notes.read(store, "t")
    replace(found, rows_per_s=9.0).write(store, "t", found)
    assert store.read_json(PRIVATE, "fragments", "t.json") == body | {"rows_per_s": 9.0}


def test_a_file_that_is_lost_or_damaged(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert Notes.read(store, "t") == Notes()
    for data in (b"", b"\0\0", b"[]", b'{"checked": ', b"[" * 100_000):
        store.write(data, PRIVATE, "fragments", "t.json")
        assert (Notes.read(store, "t"), ViewNotes.read(store, "t")) == (Notes(), ViewNotes())


def test_nothing_is_written_if_nothing_changed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    WHOLE.write(store, "t", Notes())
    place = tmp_path / PRIVATE / "fragments" / "t.json"
    place.chmod(0o600)
    read = Notes.read(store, "t")
    assert read.write(store, "t", read) == WHOLE
    assert place.stat().st_mode & 0o777 == 0o600, "the same file"


def test_where_storage_has_no_locks_others_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    before = replace(WHOLE, damaged={"old": "damaged", "mended": "damaged"})
    before.write(store, "t", Notes())
    note_damage(store, "t", {"new": "damaged"})
    theirs = Notes.read(store, "t")
    replace(theirs, rows_per_s=1.0).write(store, "t", theirs)
    monkeypatch.setattr(Store, "has_locks", False)
    ours = replace(before, keys_per_s=2.0, damaged={"old": "damaged"})
    written = ours.write(store, "t", before)
    assert written == Notes.read(store, "t")
    assert written.damaged == {"old": "damaged", "new": "damaged"}
    assert (written.rows_per_s, written.keys_per_s) == (1.0, 2.0)


RECORD = VersionRecord(
    as_of=AT, checked_at=AT, consistency="exact", proof="total", rows=1, published_at=LATER
)


def version(number: int, table: str = TABLE, **facts: object) -> Snapshot:
    record = VersionRecord.from_json({**RECORD.to_json(), **facts})
    return cast(Snapshot, SimpleNamespace(version=number, table=table, record=record))


def test_when_a_version_was_checked() -> None:
    """By its commit, or by the note of a later refresh that published nothing."""
    one, first = version(3), ComparisonNote(AT, AT, "exact")
    assert Notes().comparison(one) == first
    later = ComparisonNote(LATER, LATER, "fuzzy")
    noted = Notes(checked=VersionNote(3, later), head=HeadNote(TABLE, 3))
    assert noted.comparison(one) == later
    assert replace(noted, checked=VersionNote(2, later)).comparison(one) == first


def test_what_is_said_of_another_version_or_table_says_nothing() -> None:
    security = PolicyDigests("ab", {("orders", "mine"): "cd"})
    assert WHOLE.part_left(version(3)) == UncomparedNote(1234, 5.5, "no scan")
    assert WHOLE.policies(version(3)) == security
    assert WHOLE.marking(version(3)).mark == b"mark"
    assert WHOLE.comparison(version(3)).checked_at == LATER
    for other in (version(4), version(2), version(3, "of another table")):
        assert WHOLE.part_left(other) is None
        assert WHOLE.policies(other) is None
        assert WHOLE.marking(other) == KeptMark()
        assert WHOLE.comparison(other).checked_at == AT
    again = version(3, published_at="2026-01-03T00:00:00Z")
    assert WHOLE.marking(again) == KeptMark()


def test_a_head_that_is_older_than_noted() -> None:
    assert WHOLE.newer(version(2)) == 3
    assert WHOLE.newer(version(3)) is None
    assert WHOLE.newer(version(2, "of another table")) is None
    assert Notes().newer(version(0)) is None


def test_notes_of_a_version_that_is_published_again() -> None:
    after = version(7, published_at="2026-01-03T00:00:00Z")
    moved = WHOLE.moved(version(3), after)
    assert moved.comparison(after) == WHOLE.comparison(version(3))
    assert moved.marking(after) == WHOLE.marking(version(3))
    assert (moved.part_left(after), moved.head) == (WHOLE.part_left(version(3)), HeadNote(TABLE, 7))
    assert WHOLE.moved(version(2), after) == WHOLE
    halfway = replace(WHOLE, head=HeadNote(TABLE, 3, is_renumbered=True))
    assert halfway.moved(version(3), after).head == HeadNote(TABLE, 7), "7 was never given out"


def test_numbers_that_are_given_out_again_take_what_others_noted_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is locked: what another command noted of a version meanwhile goes as well."""
    monkeypatch.setattr(Store, "has_locks", False)
    store, before = Store(str(tmp_path)), replace(WHOLE, checked=None)
    WHOLE.write(store, "t", Notes())
    for head in (HeadNote(TABLE, 3, is_renumbered=True), None):
        ours = replace(before.unchecked(), head=head)
        assert ours.write(store, "t", before).checked is None
        WHOLE.write(store, "t", Notes())


def test_what_is_left_of_a_table_without_versions() -> None:
    left = WHOLE.without_versions()
    assert WHOLE.has_versions
    assert not left.has_versions
    assert (left.prices, left.turn, left.rows_per_s) == (WHOLE.prices, WHOLE.turn, 7.0)
    assert WHOLE.unchecked().head == WHOLE.head
    assert WHOLE.unchecked().comparison(version(3)).checked_at == AT

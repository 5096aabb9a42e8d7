"""Outcomes of several exchanges as one: in any grouping, and alone."""

from __future__ import annotations

from dataclasses import replace

from driftline.relations.activity import CountedActivity
from driftline.rows.digests import MASK128, Digest
from hypothesis import given
from hypothesis import strategies as st

from warehouse_agent.planning.choice import Method
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.tasks.difference import NoDifference, Outcome, joined

DIGESTS = st.builds(Digest, st.integers(0, 1 << 40), st.integers(0, MASK128))
INSTANTS = st.integers(0, 59).map(lambda second: f"2026-01-01T00:00:{second:02}Z")
COUNTS = st.integers(0, 1 << 40)
SECONDS = st.integers(0, 1 << 40).map(float)  # whole ones, whose sums are exact
OUTCOMES = st.builds(
    Outcome,
    st.just(NoDifference()),
    st.just(Method.RANGE),
    theirs=DIGESTS,
    as_of=INSTANTS,
    checked_at=INSTANTS,
    consistency=st.sampled_from(["exact", "fuzzy"]),
    changed=st.booleans(),
    vouched=st.booleans(),
    came=DIGESTS,
    scans=COUNTS,
    rows_read=COUNTS,
    round_trips=COUNTS,
    frame_bytes=COUNTS,
    answered_s=SECONDS,
    held_back_s=SECONDS,
    snapshot_s=SECONDS,
    row_security=st.none() | st.text("ab", max_size=2).map(lambda text: PolicyDigests(text, {})),
    activity=st.none() | COUNTS.map(lambda count: CountedActivity("table", count)),
)
SEVERAL = st.lists(OUTCOMES, min_size=1, max_size=4)


def one(*found: Outcome, is_one_snapshot: bool) -> Outcome:
    return joined(found, NoDifference(), Method.RANGE, is_one_snapshot=is_one_snapshot)


@given(SEVERAL, SEVERAL, SEVERAL, st.booleans())
def test_joining_is_associative(
    a: list[Outcome], b: list[Outcome], c: list[Outcome], is_one_snapshot: bool
) -> None:
    def join(*found: Outcome) -> Outcome:
        return one(*found, is_one_snapshot=is_one_snapshot)

    whole = join(*a, *b, *c)
    assert whole == join(join(*a), join(*b), join(*c))
    assert whole == join(join(join(*a), join(*b)), join(*c))
    assert whole == join(join(*a), join(join(*b), join(*c)))


@given(OUTCOMES, st.booleans())
def test_one_alone_stays_as_it_is(found: Outcome, is_one_snapshot: bool) -> None:
    assert one(found, is_one_snapshot=is_one_snapshot) == found


@given(st.lists(OUTCOMES, min_size=2, max_size=5))
def test_rows_of_several_snapshots_are_of_different_instants(found: list[Outcome]) -> None:
    tiles, shards = (one(*found, is_one_snapshot=is_one) for is_one in (False, True))
    assert tiles.consistency == "fuzzy"
    weakest = "exact" if all(part.consistency == "exact" for part in found) else "fuzzy"
    assert shards == replace(tiles, consistency=weakest)
    assert tiles.theirs.count == sum(part.theirs.count for part in found)
    assert tiles.as_of <= min(part.as_of for part in found)
    assert tiles.activity == min(found, key=lambda part: part.as_of).activity
    assert tiles.checked_at == max(part.checked_at for part in found)


@given(OUTCOMES, DIGESTS)
def test_rows_beside_a_part_are_older(found: Outcome, rest: Digest) -> None:
    whole = found.beside(rest)
    assert whole.theirs == found.theirs + rest
    assert whole.consistency == "fuzzy"
    assert replace(whole, theirs=found.theirs, consistency=found.consistency) == found

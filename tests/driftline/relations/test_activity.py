"""Activities: what is written is read, as JSON and as a message; what is damaged is told."""

from __future__ import annotations

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import ACTIVITY_BYTES_MAX
from driftline.relations.activity import (
    Activity,
    CountedActivity,
    FlaggedActivity,
    UnknownActivity,
    from_json,
    to_json,
)
from driftline.relations.activity_messages import from_message, to_message
from hypothesis import given
from hypothesis import strategies as st

HEX = st.binary(max_size=ACTIVITY_BYTES_MAX).map(bytes.hex)
ACTIVITIES = st.one_of(
    st.builds(CountedActivity, HEX, st.integers(0, 2**63 - 1)),
    st.builds(FlaggedActivity, HEX, HEX),
    st.builds(UnknownActivity, st.text(st.characters(codec="utf-8"), min_size=1)),
)


@given(ACTIVITIES)
def test_an_activity_survives_both_forms(activity: Activity) -> None:
    assert from_json(to_json(activity)) == activity
    sent = pb.Activity.FromString(to_message(activity).SerializeToString())
    assert from_message(sent) == activity


@pytest.mark.parametrize(
    "body",
    [
        None,
        "text",
        {},
        {"kind": "another"},
        {"kind": "counted", "identity": "00"},
        {"kind": "counted", "identity": "00", "changes": -1},
        {"kind": "counted", "identity": "00", "changes": True},
        {"kind": "counted", "identity": 0, "changes": 1},
        {"kind": "flagged", "identity": "00", "flag": None},
        {"kind": "flagged", "identity": "00", "flag": "00", "more": 1},
        {"kind": ["counted"]},
    ],
)
def test_a_damaged_note_is_none(body: object) -> None:
    assert from_json(body) is None


@pytest.mark.parametrize(
    "message",
    [
        pb.Activity(identity=bytes(ACTIVITY_BYTES_MAX + 1), changes=1),
        pb.Activity(flag=bytes(ACTIVITY_BYTES_MAX + 1)),
        pb.Activity(changes=2**63),
    ],
)
def test_a_message_out_of_bounds_is_refused(message: pb.Activity) -> None:
    with pytest.raises(MalformedMessage):
        from_message(message)


def test_a_kind_of_a_newer_source_is_not_known() -> None:
    assert isinstance(from_message(pb.Activity(identity=b"i")), UnknownActivity)
    assert isinstance(from_message(pb.Activity(unknown="")), UnknownActivity)

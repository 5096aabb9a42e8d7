"""Foreign keys as messages: what is sent comes back; what is no foreign key is refused."""

from __future__ import annotations

from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import NAME_BYTES_MAX, REFERENCES_MAX
from driftline.relations.reference_messages import from_description, to_messages
from driftline.relations.references import OnDelete, Reference

COLUMNS = [pb.ColumnDescription(name=name, type="int8") for name in ("id", "customer", "place")]
GOOD: dict[str, Any] = {
    "columns": ["customer"],
    "relation": "customers",
    "referenced": ["id"],
}


def described(*references: pb.Reference) -> pb.Description:
    return pb.Description(columns=COLUMNS, references=references)


@pytest.mark.parametrize("rule", OnDelete)
def test_a_foreign_key_comes_back(rule: OnDelete) -> None:
    sent = Reference(("customer", "place"), "customers", ("id", "at"), rule)
    body = described(*to_messages([sent])).SerializeToString()
    assert from_description(pb.Description.FromString(body)) == (sent,)


def test_a_rule_of_a_newer_release_is_overlooked() -> None:
    new = pb.Reference(**GOOD, on_delete="archive")
    known = pb.Reference(**GOOD, on_delete="cascade")
    assert [one.on_delete for one in from_description(described(new, known))] == [OnDelete.CASCADE]


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": []},
        {"columns": ["customer", "place"]},
        {"columns": ["secret"]},
        {"referenced": []},
        {"referenced": [""]},
        {"relation": ""},
        {"relation": "x" * (NAME_BYTES_MAX + 1)},
    ],
)
def test_what_is_no_foreign_key_is_refused(wrong: dict[str, object]) -> None:
    sent = pb.Reference(**{**GOOD, "on_delete": "cascade", **wrong})
    with pytest.raises(MalformedMessage, match="foreign key"):
        from_description(described(sent))


def test_too_many_are_refused_and_not_sent() -> None:
    one = Reference(("customer",), "customers", ("id",), OnDelete.CASCADE)
    assert len(to_messages([one] * (REFERENCES_MAX + 5))) == REFERENCES_MAX
    sent = to_messages([one] * REFERENCES_MAX)
    assert len(from_description(described(*sent))) == REFERENCES_MAX
    with pytest.raises(MalformedMessage, match="the maximum is 256"):
        from_description(described(*sent, sent[0]))

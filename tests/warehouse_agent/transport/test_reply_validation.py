"""What a source says enters the warehouse bounded, in range and safe to print, over mutual TLS."""

from __future__ import annotations

import ast
import json
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import BY_CODE, GRPC_STATUS, DriftlineError, MalformedMessage
from driftline.limits import ERROR_CHARACTERS_MAX, FINGERPRINT_VERSION, NAME_BYTES_MAX
from driftline.peer_text import one_line, visible
from driftline.values.types import Column, Recipe, parse_type
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.harness.rogue import line_to
from warehouse_agent.config import Fragment
from warehouse_agent.inspection import readiness
from warehouse_agent.refresh import schema_change
from warehouse_agent.storage.store import Store
from warehouse_agent.transport import reply_validation
from warehouse_agent.transport.reply_validation import (
    check_activities,
    check_description,
    check_reply,
    refusal,
)

HOSTILE = "\x1b[2J\x1b]0;owned\x07\rgood: \u202e0001\u2028\nforged line"
AS_OF = "2026-01-01T00:00:00.5Z"


@given(st.text(), st.integers(1, 50))
def test_one_line_is_printable_and_bounded(text: str, most: int) -> None:
    line = one_line(text, most)
    assert line.isprintable()
    assert len(line) <= most


@given(st.text())
def test_visible_text_controls_no_terminal(text: str) -> None:
    shown = visible(text)
    assert shown.replace("\n", "").isprintable()
    assert visible(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.text(), st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_an_error_controls_no_terminal(
    message: str, remedy: str, where: str, details: dict[str, str]
) -> None:
    error = DriftlineError(message, remedy=remedy, where=where, details=details)
    for text in (str(error), error.message, *error.details, *error.details.values()):
        assert text.replace("\n", "").isprintable()
        assert all(line.startswith(" ") for line in text.split("\n")[1:]), "no line like ours"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details) == (str(error), error.details)


def test_a_name_in_an_error_is_bounded() -> None:
    """Whoever writes the error: it is printed, and kept in the history."""
    with pytest.raises(MalformedMessage) as caught:
        parse_type("x" * (1 << 20) + HOSTILE)
    assert len(str(caught.value)) == ERROR_CHARACTERS_MAX
    assert len(visible(str(pickle.loads(pickle.dumps(caught.value))))) == ERROR_CHARACTERS_MAX


def finished(**fields: object) -> pb.Reply:
    good = {"count": 1, "sum": bytes(16), "as_of": AS_OF, "consistency": "exact"}
    return pb.Reply(finished=pb.Finished(**{**good, **fields}))  # type: ignore[arg-type]


def described(**fields: object) -> pb.DescribeReply:
    return pb.DescribeReply(description=pb.Description(**fields))  # type: ignore[arg-type]


def allowing(**facts: object) -> pb.DescribeReply:
    return pb.DescribeReply(relations=["a"], allowances=[pb.Allowance(**facts)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply",
    [
        finished(count=2**63),
        finished(rows_read=2**64 - 1),
        finished(activity=pb.Activity(changes=2**63)),
        finished(activity=pb.Activity(flag=bytes(33))),
        finished(sum=bytes(17)),
        finished(consistency="perfect"),
        finished(consistency=""),
        finished(as_of="yesterday"),
        finished(as_of="2026-02-30T00:00:00Z"),
        finished(as_of=AS_OF + HOSTILE),
        finished(as_of="2026-01-01T00:00:00.123456789Z"),
        pb.Reply(verdict=pb.Verdict(count=2**63, sum=bytes(16))),
        pb.Reply(verdict=pb.Verdict(count=1, sum=bytes(15))),
        pb.Reply(progress=pb.Progress(rows=2**63)),
        pb.Reply(progress=pb.Progress(rows_expected=2**63)),
    ],
)
def test_a_reply_that_no_source_can_mean(reply: pb.Reply) -> None:
    with pytest.raises(MalformedMessage) as caught:
        check_reply(reply)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0, -5e-324])
@pytest.mark.parametrize("name", ["rows_per_second", "bytes_per_second"])
def test_a_rate_that_is_none(name: str, rate: float) -> None:
    with pytest.raises(MalformedMessage, match=name):
        check_description(described(**{name: rate}))


@pytest.mark.parametrize(
    "reply",
    [
        described(rows_expected=2**63),
        described(key_columns=1),
        described(columns=[pb.ColumnDescription(name="a", type="int4")] * 2, key_columns=1),
        pb.DescribeReply(relations=["a", "b"], allowances=[pb.Allowance(scan=True)]),
        pb.DescribeReply(allowances=[pb.Allowance(scan=True)]),
        allowing(rows_by_key=2**63),
        allowing(begins="tonight"),
        allowing(begins="2026-13-01T22:00:00Z"),
        allowing(ends=HOSTILE),
        pb.DescribeReply(relations=[""]),
        pb.DescribeReply(relations=["orders", "a\x1b[31m"]),
        pb.DescribeReply(relations=["x" * (NAME_BYTES_MAX + 1)]),
    ],
)
def test_a_description_that_no_source_can_mean(reply: pb.DescribeReply) -> None:
    with pytest.raises(MalformedMessage) as caught:
        check_description(reply)
    assert str(caught.value).isprintable()


def test_what_a_source_says_is_left_as_it_is() -> None:
    reply = described(rows_per_second=0.0, bytes_per_second=1e9, rows_expected=7, notes=["a: é"])
    check_description(reply)
    reply.MergeFrom(allowing(begins=AS_OF, ends=AS_OF, rows_by_key=1000))
    before = reply.SerializeToString()
    check_description(reply)
    assert reply.SerializeToString() == before
    for good in (finished(), finished(consistency="fuzzy", as_of="2026-01-01T00:00:00Z")):
        before = good.SerializeToString()
        check_reply(good)
        assert good.SerializeToString() == before


def test_text_is_bounded() -> None:
    details = {f"{n}{HOSTILE}": HOSTILE * 1000 for n in range(1000)}
    refused = pb.Refused(code="VALUE", message=HOSTILE * 10**5, remedy=HOSTILE * 10**5)
    refused.details.update(details)
    error = refusal(refused)
    assert error.code == "VALUE"
    assert len(str(error)) < 6_000
    assert len(error.details) == reply_validation.DETAILS_MAX
    assert str(error).isprintable()
    assert len(json.dumps(error.details)) < 200_000
    reply = described(notes=[HOSTILE * 10**4])
    reply.agent = reply.database = HOSTILE * 10**4
    check_description(reply)
    for text in (reply.agent, reply.database, *reply.description.notes):
        assert text.isprintable()
        assert len(text) <= reply_validation.LINE_CHARACTERS_MAX


OF_SOURCES = {kind.code for kind in GRPC_STATUS} | {"INTERNAL"}


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_a_source_refuses_with_errors_of_a_source(code: str) -> None:
    """With others a warehouse would read all its files, or believe that its own Spark failed."""
    refused = pb.Refused(code=code, message=HOSTILE, details={"data file": "t/../../x.parquet"})
    error = refusal(refused)
    assert error.code == (code if code in OF_SOURCES else "MALFORMED")
    assert str(error).isprintable()
    if code not in OF_SOURCES:
        assert code in error.message
        assert not error.details


def test_a_source_raises_no_other_errors() -> None:
    """Beside those of its command line, and of a warehouse's file in the shared readers."""
    raised = {
        node.exc.func.id
        for folder in ("server", "engines", "methods", "scan", "budgets")
        for path in (ROOT / "source_agent" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }
    kinds = {kind.__name__: code for code, kind in BY_CODE.items()}
    assert {kinds[name] for name in raised & kinds.keys()} <= OF_SOURCES


# Over the line


def answering(*replies: pb.Reply) -> Callable[[Iterator[pb.Request]], Iterator[pb.Reply]]:
    def says(requests: Iterator[pb.Request]) -> Iterator[pb.Reply]:
        next(requests)
        yield from replies

    return says


@pytest.mark.starts
def test_a_hostile_column_is_kept_as_it_is_and_shown_escaped(tmp_path: Path) -> None:
    """A name is compared, so it stays; what a person is shown of it acts on no terminal."""
    columns = [
        pb.ColumnDescription(name=name, type="int8", ordinal=number)
        for number, name in enumerate((HOSTILE, f"b{HOSTILE * 1000}"))
    ]
    reply = described(
        columns=columns, key_columns=1, fingerprint_version=FINGERPRINT_VERSION, vouched=True
    )
    with line_to(tmp_path, answering(), reply) as link:
        got = link.describe("orders")
        assert [column.name for column in got.description.columns] == [c.name for c in columns]
        fragment = Fragment("orders", link.source, "orders")
        told = readiness._relation(Store(str(tmp_path / "warehouse")), fragment, lambda: None)
    assert told.isprintable()
    assert "\\x1b[2J" in told
    old = Recipe((Column("id", parse_type("int8"), False, 1),), 1)
    new = schema_change.recipe_of(got.description)
    changes = tuple(schema_change.column_changes(old, new))
    assert HOSTILE in changes[0]


@pytest.mark.starts
def test_every_message_of_the_line_passes_here(tmp_path: Path) -> None:
    progress = pb.Reply(progress=pb.Progress(phase=HOSTILE, rows=1))
    says = answering(progress, finished(consistency=HOSTILE))
    nan = described(rows_per_second=math.nan)
    with line_to(tmp_path, says, nan) as link:
        with pytest.raises(MalformedMessage, match="no rate"):
            link.describe("orders")
        with link.stream() as stream:
            stream.send(pb.Request(open=pb.Open()))
            assert stream.receive().progress.phase.isprintable()
            with pytest.raises(MalformedMessage, match="consistency") as caught:
                stream.receive()
            stream.abandon()
        assert str(caught.value).isprintable()


def test_activities_are_one_for_each_relation_in_bounds_and_safe_to_show() -> None:
    bell = pb.Activity(unknown="\x1b[2J\nwiped")
    reply = pb.ActivityReply(activities=[pb.Activity(changes=7), bell])
    check_activities(reply, 2)
    assert reply.activities[1].unknown.isprintable()
    assert reply.activities[0].changes == 7
    for asked in (1, 3):
        with pytest.raises(MalformedMessage, match="of 2 relations"):
            check_activities(reply, asked)
    reply.activities[0].identity = bytes(33)
    with pytest.raises(MalformedMessage, match="more than 32 bytes"):
        check_activities(reply, 2)

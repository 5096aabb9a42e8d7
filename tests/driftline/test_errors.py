"""The hierarchy: every error has a code, survives the wire and a pickle, and is documented."""

from __future__ import annotations

import copy
import pickle
import re

import grpc
import pytest
from driftline import errors, wire_pb2
from driftline.errors import BY_CODE, GRPC_STATUS, DriftlineError, from_code
from driftline.limits import COLUMNS_NAMED_MAX

from tests import ROOT

KINDS = sorted(BY_CODE.values(), key=lambda kind: kind.__name__)
EXIT_CODES = {1, 2, 4, 5, 6, 75}

# What never leaves a source as a gRPC status: it belongs to the command line or to the warehouse.
# InternalError leaves as INTERNAL, which is what everything unlisted becomes.
STAYS = {
    errors.UsageError,
    errors.SourceUnreachable,
    errors.TableShrank,
    errors.ProofFailed,
    errors.ViewFailed,
    errors.WarehouseUnavailable,
    errors.CommandKilled,
    errors.SparkLost,
    errors.Locked,
    errors.InternalError,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_an_error_survives_a_pickle(kind: type[DriftlineError], duplicate) -> None:
    for error in (
        kind("What happened."),
        kind("What happened.", remedy="Do it.", where="orders", details={"sample 1": "k=1"}),
    ):
        again = duplicate(error)
        assert type(again) is kind
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_wire(kind: type[DriftlineError]) -> None:
    error = kind("What happened.", remedy="Do it.", where="orders", details={"a": "ä"})
    sent = wire_pb2.Refused(
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        where=error.where,
        details=error.details,
    )
    came = wire_pb2.Refused.FromString(sent.SerializeToString())
    again = from_code(
        came.code, came.message, remedy=came.remedy, where=came.where, details=dict(came.details)
    )
    assert type(again) is kind
    assert vars(again) == vars(error)


def test_an_unknown_code_is_an_internal_error() -> None:
    error = from_code("LATER", "Something new.", details={})
    assert type(error) is errors.InternalError
    assert error.message == "Something new."
    assert "same release on both sides" in error.remedy
    assert "report it" not in error.remedy
    assert from_code("LATER", "New.", remedy="Wait.", details={}).remedy.startswith("Wait. The")
    assert "report it" in from_code("INTERNAL", "Old.", details={}).remedy


def test_codes_are_unique_and_complete() -> None:
    named = {kind.__name__ for kind in BY_CODE.values()}
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, DriftlineError)
    }
    assert named == defined - {"DriftlineError"}
    for kind in KINDS:
        assert re.fullmatch(r"[A-Z_]+", kind.code)
        assert "code" in vars(kind), "inherits its code"
        assert kind.exit_code in EXIT_CODES
        assert kind.is_retryable == (kind.exit_code in {4, 75}) or kind.is_retryable


LISTED = dict(re.findall(r"[├└]── (\w+)(?: +(retryable))?$", errors.__doc__ or "", re.MULTILINE))


def test_the_header_lists_the_hierarchy() -> None:
    assert set(LISTED) == {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_header_says_what_is_retryable(kind: type[DriftlineError]) -> None:
    assert kind.is_retryable == bool(LISTED[kind.__name__])


def test_an_error_says_where_what_and_what_to_do() -> None:
    error = errors.NullKey("A key is NULL.", where="orders", remedy="Filter it.")
    assert str(error) == "orders: A key is NULL. Filter it."
    assert str(errors.NullKey("A key is NULL.")) == "A key is NULL."
    lost = errors.SnapshotLost("It changed.")
    assert lost.remedy == errors.SnapshotLost.default_remedy
    assert errors.SnapshotLost("It changed.", remedy="Wait.").remedy == "Wait."
    details = {"a": "b"}
    assert errors.NotFound("", details=details).details is not details


def test_several_errors_of_a_kind_are_one() -> None:
    one = errors.ValueDoesNotFit("a is xml.", where="orders", remedy="Cast it.")
    assert errors.together([one], where="elsewhere") is one
    many = [
        errors.ValueDoesNotFit(f"c{i} is xml.", remedy="Cast it.", details={"type": f"xml{i}"})
        for i in range(COLUMNS_NAMED_MAX + 2)
    ]
    found = errors.together(many[:2], where="orders")
    assert type(found) is errors.ValueDoesNotFit
    assert str(found) == "orders: c0 is xml. c1 is xml. Cast it."
    assert found.details == {"1. type": "xml0", "2. type": "xml1"}
    assert errors.together(many, remedy="Leave them out.").remedy == "Leave them out."
    message = errors.together(many).message
    assert message.endswith(f"c{COLUMNS_NAMED_MAX - 1} is xml. And 2 more.")


def test_every_status_is_one_of_grpc() -> None:
    for status in GRPC_STATUS.values():
        assert hasattr(grpc.StatusCode, status)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in STAYS])
def test_what_leaves_the_source_has_a_status(kind: type[DriftlineError]) -> None:
    assert kind in GRPC_STATUS


@pytest.mark.skipif(not (ROOT / "docs/errors.md").is_file(), reason="docs/errors.md is not written")
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_index_has_every_code(kind: type[DriftlineError]) -> None:
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{kind.code}\b", text)


def test_every_code_has_few_words_of_its_own() -> None:
    assert set(errors.BRIEF) == set(BY_CODE)
    assert len(set(errors.BRIEF.values())) == len(BY_CODE)
    assert max(map(len, errors.BRIEF.values())) <= 24
    assert errors.named("SHRANK") == "SHRANK (most rows are gone)"
    assert errors.named("OF_A_NEWER_RELEASE") == "OF_A_NEWER_RELEASE"

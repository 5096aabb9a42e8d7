"""Which refreshes a source would refuse now, and that `plan` says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, LimitExceeded, NotNow
from driftline.limits import GROUPED_KEYS_MAX

from tests.warehouse_agent.inspection.test_refresh_prediction import ROWS, known
from warehouse_agent.config import Fragment, Proof, Source
from warehouse_agent.history.forecast_inputs import rows_of_part
from warehouse_agent.inspection.refresh_prediction import predict
from warehouse_agent.planning.allowance import Allowance
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import PassSettings, Tiled
from warehouse_agent.transport.channel import allowances

NOW = known().now
TONIGHT = NOW + timedelta(hours=10)
LATER = Allowance(scan=False, begins=TONIGHT)
NEVER = Allowance(scan=False)
AT = f"{TONIGHT:%Y-%m-%dT%H:%M:%SZ}"


def test_a_scan_waits_for_its_hours() -> None:
    refusal = known(allowance=LATER).refusal
    assert isinstance(refusal, NotNow)
    assert (refusal.where, refusal.details) == ("orders", {"next scan": AT})
    assert AT in refusal.message
    assert LATER.refusal("orders", by_key=None, now=TONIGHT) is None, "the time has come"
    assert known(allowance=Allowance(scan=True)).refusal is None
    assert known().refusal is None, "an older source"


def test_no_scan_at_all() -> None:
    refusal = known(allowance=NEVER).refusal
    assert isinstance(refusal, LimitExceeded)
    assert 'proof = "part"' in refusal.remedy


@pytest.mark.parametrize("limit", [None, 999, 1000])
def test_a_part_needs_no_scan(limit: int | None) -> None:
    allowance = Allowance(scan=False, begins=TONIGHT, rows_by_key=limit)
    refusal = known(read_at_most=1000, allowance=allowance).refusal
    assert isinstance(refusal, LimitExceeded) == (limit == 999)
    assert refusal is None or "rows_by_key" in refusal.message
    first_load = known(rows=None, version=None, read_at_most=1000, allowance=allowance)
    assert isinstance(first_load.refusal, NotNow)


@pytest.mark.parametrize(
    ("tiles", "limit", "kind"),
    [
        (4, None, None),
        (4, ROWS // 4, None),
        (4, ROWS // 4 - 1, LimitExceeded),
        (1, None, NotNow),
        (1, ROWS, None),
        (1, ROWS - 1, LimitExceeded),
    ],
)
def test_tiles(tiles: int, limit: int | None, kind: type[Exception] | None) -> None:
    """Refused only if some tile is surely too large, or if there is one without bounds."""
    allowance = Allowance(scan=False, begins=TONIGHT, rows_by_key=limit)
    refusal = known(tiled=Tiled(PassSettings(), tiles), allowance=allowance).refusal
    assert refusal is None if kind is None else isinstance(refusal, kind)


@pytest.mark.parametrize(
    ("allowance", "read_at_most", "rows"),
    [
        (Allowance(scan=True), None, None),
        (Allowance(scan=True), 1000, 1000),
        (Allowance(scan=True, has_hours=True), 1000, None),
        (Allowance(scan=False, begins=NOW, has_hours=True), 1000, None),
        (LATER, 1000, 1000),
        (LATER, None, GROUPED_KEYS_MAX),
        (NEVER, None, GROUPED_KEYS_MAX),
        (Allowance(scan=False, rows_by_key=5000), None, 5000),
        (Allowance(scan=False, rows_by_key=5000), 9000, 9000),  # which is refused
        (Allowance(scan=False, rows_by_key=2 * GROUPED_KEYS_MAX), None, GROUPED_KEYS_MAX),
    ],
)
def test_the_rows_of_a_part(
    allowance: Allowance, read_at_most: int | None, rows: int | None
) -> None:
    assert allowance.part(read_at_most, NOW) == rows


@pytest.mark.parametrize(
    ("facts", "is_covered"),
    [
        ({}, True),
        ({"rows_by_key": 999}, False),
        ({"rows_by_key": None}, False),  # the DBA says nothing of all rows by key
        ({"knows_keys": False}, False),
        ({"scan": True}, False),
        ({"begins": NOW, "has_hours": True}, False),
        ({"begins": TONIGHT, "has_hours": True}, True),
    ],
)
def test_all_rows_by_key(facts: dict[str, Any], is_covered: bool) -> None:
    """With as much room for new rows as a part has."""
    allowance = replace(Allowance(scan=False, rows_by_key=1000, knows_keys=True), **facts)
    assert allowance.covers(850, NOW) == is_covered
    assert not allowance.covers(851, NOW)


def test_all_rows_by_key_are_refused_by_no_hours() -> None:
    facts: dict[str, Any] = {"named_key_bytes": 8.0, "by_key": True}
    allowance = Allowance(scan=False, rows_by_key=2 * ROWS, knows_keys=True)
    found = predict(known(allowance=allowance, **facts))
    assert (found.refused, found.chosen) == (None, "by groups")
    assert found.why == "the source allows no scan, 200,000 rows by key, enough for all rows"
    (way,) = (one for one in found.candidates if one.what == found.chosen)
    assert way.source_scans == 0


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        ({"proof": Proof.PART}, 5000),
        ({"proof": Proof.PART, "read_at_most": 1000}, 1000),
        ({"proof": Proof.PART, "method": Method.GROUP}, 5000),
        ({"proof": Proof.PART, "method": Method.SKETCH}, None),
        ({"proof": Proof.PART, "incremental": PassSettings()}, None),
        ({"proof": Proof.KEYS}, None),
        ({}, None),
    ],
)
def test_only_a_fragment_that_says_so_is_compared_in_part(
    lines: dict[str, Any], rows: int | None
) -> None:
    fragment = Fragment("orders", Source("erp", "127.0.0.1:1"), "orders", **lines)
    now_allowed = Allowance(scan=False, rows_by_key=5000)
    assert rows_of_part(fragment, now_allowed, NOW) == rows
    assert rows_of_part(fragment, None, NOW) == lines.get("read_at_most"), "an older source"


@pytest.mark.parametrize("bounds", [None, (0, 2**40)], ids=["text", "far apart"])
def test_plan_says_that_a_key_is_unfit_for_parts(bounds: tuple[int, int] | None) -> None:
    found = predict(known(read_at_most=5000, allowance=LATER, bounds=bounds))
    assert found.refused is not None
    assert "key is one integer" in found.refused
    assert isinstance(known(read_at_most=5000, bounds=bounds).refusal, ConfigurationError)
    assert predict(known(bounds=bounds)).refused is None


def test_an_allowance_in_words() -> None:
    assert Allowance(scan=True).describe(NOW) == ""
    assert NEVER.describe(NOW) == "no scan"
    assert LATER.describe(NOW) == f"no scan before {AT}"
    assert LATER.describe(TONIGHT) == ""
    limited = Allowance(scan=True, rows_by_key=5000, has_hours=True)
    assert limited.describe(NOW) == "scans in some hours, now one of them, 5,000 rows by key"


def test_plan_says_why_it_is_a_part() -> None:
    found = predict(known(read_at_most=5000, allowance=LATER))
    assert found.why == f'the source allows no scan before {AT} (proof = "part")'
    assert found.refused is None


def test_plan_foresees_it() -> None:
    found = predict(known(allowance=LATER))
    assert found.refused is not None
    assert AT in found.refused
    assert predict(known(allowance=Allowance(scan=True))).refused is None


def test_what_a_source_says() -> None:
    said = [pb.Allowance(scan=True, rows_by_key=9), pb.Allowance(begins="2026-01-02T22:00:00Z")]
    reply = pb.DescribeReply(relations=["a", "b"], allowances=said)
    knowing = pb.DescribeReply(relations=["a"], allowances=said[:1], features=["keys"])
    assert allowances(knowing)["a"].knows_keys
    assert allowances(reply) == {
        "a": Allowance(scan=True, rows_by_key=9),
        "b": Allowance(scan=False, begins=datetime(2026, 1, 2, 22, tzinfo=UTC)),
    }
    assert allowances(pb.DescribeReply(relations=["a"])) == {}, "an older source"

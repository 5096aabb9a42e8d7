"""Which refreshes a source would refuse now, and that `plan` says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import LimitExceeded, NotNow

from tests.warehouse_agent.cli.test_plan import ROWS, known
from warehouse_agent.cli.plan import predict
from warehouse_agent.planning.candidates import Allowance
from warehouse_agent.planning.tiling import Incremental, Tiled
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
    assert "read_at_most" in refusal.remedy


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
    refusal = known(tiled=Tiled(Incremental(), tiles), allowance=allowance).refusal
    assert refusal is None if kind is None else isinstance(refusal, kind)


def test_plan_says_it() -> None:
    found = predict(known(allowance=LATER))
    assert found.refused is not None
    assert f"  a refresh will be refused now: {found.refused}" in found.text().splitlines()
    assert AT in found.refused
    assert predict(known(allowance=Allowance(scan=True))).refused is None


def test_what_a_source_says() -> None:
    said = [pb.Allowance(scan=True, rows_by_key=9), pb.Allowance(begins="2026-01-02T22:00:00Z")]
    reply = pb.DescribeReply(relations=["a", "b"], allowances=said)
    assert allowances(reply) == {
        "a": Allowance(scan=True, rows_by_key=9),
        "b": Allowance(scan=False, begins=datetime(2026, 1, 2, 22, tzinfo=UTC)),
    }
    assert allowances(pb.DescribeReply(relations=["a"])) == {}, "an older source"

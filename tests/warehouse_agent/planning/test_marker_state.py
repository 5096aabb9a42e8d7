"""When a marker may be used, and what a note of an audit that is damaged means."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.warehouse_agent.planning.test_copy_at_once import LAN, WAN, known
from warehouse_agent.change_models.operational_time import changes_expected
from warehouse_agent.methods.registry import opening_for
from warehouse_agent.methods.since import SinceOpening
from warehouse_agent.planning.marker_state import AUDITS_MISSED, MarkerAudit, MarkerState
from warehouse_agent.planning.network import Line

NOW = datetime(2026, 5, 10, tzinfo=UTC)
AUDIT = MarkerAudit("2026-05-09T00:00:00Z", "2026-05-02T00:00:00Z", 48_210, 12, ("1", "2"), 1)
STATE = MarkerState(b"mark", "", hashes=True, audit=AUDIT, audit_s=7 * 86_400, is_known=True)


def test_a_marker_is_used_until_an_audit_is_due() -> None:
    assert STATE.refused(NOW) == ""
    assert STATE.refused(NOW + timedelta(days=6)) == "an audit is due"
    assert STATE.refused(NOW - timedelta(days=2)) == "an audit is due"  # a clock was set back
    assert replace(STATE, mark=b"", why="no marker").refused(NOW) == "no marker"
    assert replace(STATE, mark=b"").refused(NOW) == "there is no mark yet"
    assert replace(STATE, audit=None).refused(NOW) == "there is no mark yet"
    wrong = replace(STATE, audit=replace(AUDIT, in_row=AUDITS_MISSED))
    assert "--trust-marker" in wrong.refused(NOW)


@pytest.mark.parametrize("line", [LAN, WAN])
@pytest.mark.parametrize("rows", [10_000, 100_000, 3_000_000])
@pytest.mark.parametrize("times", [None, 3.0, 1.0, 0.5, 0.1])
def test_a_disturbed_measurement_of_keys_asks_for_no_scan(
    line: Line, rows: int, times: float | None
) -> None:
    """A source that was busy while keys were read took longer than for all rows at another time."""
    speed = None if times is None else times * line.rows_per_s
    for hashes in (False, True):
        state = replace(STATE, hashes=hashes, keys_per_s=speed)
        at = known(line, *[0.001] * 8, rows=rows, marker=state, now=NOW)
        expected = changes_expected(list(at.earlier), at.ours, at.now)
        assert isinstance(opening_for(at, expected), SinceOpening)


def test_an_audit_is_kept_as_json() -> None:
    assert MarkerAudit.from_json(AUDIT.to_json()) == AUDIT


@pytest.mark.parametrize(
    "change", [{"at": None}, {"missed": -1}, {"changes": "3"}, {"keys": "1"}, {"in_row": None}]
)
def test_a_damaged_note_is_no_audit(change: dict[str, object]) -> None:
    assert MarkerAudit.from_json(AUDIT.to_json() | change) is None
    assert MarkerAudit.from_json([]) is None

"""When a marker may be used, and what a note of an audit that is damaged means."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from warehouse_agent.planning.marker_state import AUDITS_MISSED, MarkerAudit, MarkerState

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


def test_an_audit_is_kept_as_json() -> None:
    assert MarkerAudit.from_json(AUDIT.to_json()) == AUDIT


@pytest.mark.parametrize(
    "change", [{"at": None}, {"missed": -1}, {"changes": "3"}, {"keys": "1"}, {"in_row": None}]
)
def test_a_damaged_note_is_no_audit(change: dict[str, object]) -> None:
    assert MarkerAudit.from_json(AUDIT.to_json() | change) is None
    assert MarkerAudit.from_json([]) is None

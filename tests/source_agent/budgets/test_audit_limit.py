"""What one client can make the audit grow by: bounded, counted, and to nobody else's cost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from source_agent.budgets import audit_limit
from source_agent.budgets.audit import LEFT_OUT, AuditEntry, AuditLog
from source_agent.budgets.audit_limit import LEFT_OUT_EVERY_S, RATION_BYTES, RENEWED_S, AuditLimit

HOUR_BYTES_MAX = 10_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("read_rows", [(False,), (True,), (False, True)])
def test_an_hour_of_one_client_is_bounded(read_rows: tuple[bool, ...]) -> None:
    clock = Clock()
    limit, written, left_out = AuditLimit(clock), 0, 0
    asked = admitted = 0
    while clock.now < 1000 + RENEWED_S:
        for kind in read_rows:
            for _ in range(3):
                asked += 1
                if limit.admits("lake", 2000, read_rows=kind):
                    admitted, written = admitted + 1, written + 2000
        clock.now += 0.5
        left_out += sum(limit.left_out().values())
    left_out += sum(limit.left_out(at_once=True).values())
    assert RATION_BYTES < written <= HOUR_BYTES_MAX
    assert admitted + left_out == asked


def test_refusals_leave_out_no_reading_and_nobody_else() -> None:
    limit = AuditLimit(Clock())
    while limit.admits("mart", 300, read_rows=False):
        pass
    assert limit.admits("mart", 300, read_rows=True)
    assert limit.admits("lake", 300, read_rows=False)
    assert not limit.admits("mart", 300, read_rows=False)
    assert limit.left_out() == {}, "a line says so each minute, not each time"
    assert limit.left_out(at_once=True) == {"mart": 2}
    assert limit.left_out(at_once=True) == {}


def test_a_ration_is_renewed_and_who_is_gone_is_forgotten() -> None:
    clock = Clock()
    limit = AuditLimit(clock)
    assert limit.admits("mart", RATION_BYTES, read_rows=False)
    assert not limit.admits("mart", 1000, read_rows=False)
    clock.now += LEFT_OUT_EVERY_S
    assert limit.left_out() == {"mart": 1}
    assert limit.admits("mart", 1000, read_rows=False)
    clock.now += RENEWED_S
    limit.left_out()
    assert not limit._rations


def test_the_lines_of_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_limit, "RATION_BYTES", 5000)
    file, clock = tmp_path / "audit.jsonl", Clock()
    audit = AuditLog(file, AuditLimit(clock))
    for _ in range(500):
        audit.write(AuditEntry("mart", "x" * 10_000, "NOT_FOUND"))
        audit.write_left_out()
    audit.write(AuditEntry("mart", "orders", "sent", rows_read=7))
    audit.write(AuditEntry("lake", "orders", "described"))
    audit.write(AuditEntry("", "", "reloaded"))
    clock.now += LEFT_OUT_EVERY_S
    audit.write_left_out()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = Counter((line["client"], line["outcome"]) for line in lines)
    refused = found.pop(("mart", "NOT_FOUND"))
    assert found == {
        ("mart", "sent"): 1, ("lake", "described"): 1, ("", "reloaded"): 1, ("mart", LEFT_OUT): 1,
    }  # fmt: skip
    assert lines[-1]["lines"] == 500 - refused
    assert file.stat().st_size < 7000
    assert all("lines" not in line for line in lines[:-1])

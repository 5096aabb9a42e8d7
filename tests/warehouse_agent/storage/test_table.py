"""The record of a version: its JSON to the letter, and what older and newer tables have in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warehouse_agent.planning.update_probability import VersionClock
from warehouse_agent.storage.table import OlderRecord, VersionRecord

OLDER = Path(__file__).resolve().parents[2] / "golden" / "warehouse" / "warehouse"
RECORD = VersionRecord(
    as_of="a",
    checked_at="c",
    consistency="exact",
    proof="total",
    fingerprint="blake3",
    vouched=False,
    rows=3,
    published_at="p",
    method="full",
    clock=VersionClock((0, 2), (1.5, 2e9)),
)
# Keys that may be missing: left out where they are None.
LATER = {"clock", "row_security", "restored", "report", "inputs", "checked", "made_of"} | {
    "java", "beside", "marking", "total", "adopted",
}  # fmt: skip
TEXT = (
    '{"as_of": "a", "checked_at": "c", "consistency": "exact", "proof": "total", '
    '"fingerprint": "blake3", "vouched": false, "rows": 3, "published_at": "p", "changes": null, '
    '"changes_files": [], "rows_inserted": 0, "rows_updated": 0, "rows_deleted": 0, '
    '"repaired_files": 0, "repaired_rows": 0, "method": "full", "clock": [[0, 1.5], [2, '
    "2000000000.0]]}"
)


def bodies() -> list[dict[str, Any]]:
    found = []
    for entry in sorted(OLDER.glob("*/_delta_log/*.json")):
        for line in entry.read_text().splitlines():
            if text := json.loads(line).get("commitInfo", {}).get("driftline"):
                found.append(json.loads(text))
    return found


def test_the_json_of_a_commit_to_the_letter() -> None:
    assert json.dumps(RECORD.to_json()) == TEXT
    assert VersionRecord.from_json(json.loads(TEXT)) == RECORD
    more = replace(RECORD, row_security={"digest": "00", "policies": []}, restored=1)
    tail = ', "row_security": {"digest": "00", "policies": []}, "restored": 1}'
    assert json.dumps(more.to_json()) == TEXT.removesuffix("}") + tail


def test_what_an_older_release_committed_is_kept_to_the_letter() -> None:
    assert len(bodies()) >= 8
    for body in bodies():
        record = VersionRecord.from_json(body)
        assert json.dumps(record.to_json()) == json.dumps(body)
        assert record.rows == body["rows"]
        # As a restored version is published again: known keys change in place, new ones follow.
        again = replace(record, rows_inserted=0, restored=4).to_json()
        assert [*again] == [*dict.fromkeys([*body, "restored"])]


def test_keys_of_newer_releases_stay() -> None:
    body = {**RECORD.to_json(), "a key of tomorrow": [1]}
    assert VersionRecord.from_json(body).to_json()["a key of tomorrow"] == [1]


@pytest.mark.parametrize("key", json.loads(TEXT))
def test_what_every_release_writes_must_be_there(key: str) -> None:
    """Else a record would be misread: an older release wrote it."""
    body = {k: v for k, v in RECORD.to_json().items() if k != key}
    if key in LATER:
        assert getattr(VersionRecord.from_json(body), key) is None
        return
    with pytest.raises(OlderRecord, match=key):
        VersionRecord.from_json(body)

"""What probes are compared with: the activity kept with a version, and what refreshes found.

The activity is in the note of the last comparison of all rows, and in the report of each refresh.
What is lost makes a probe say less, never something else.
"""

from __future__ import annotations

import contextlib

from driftline.activity import Activity, from_json

from warehouse_agent.history.notes import Notes
from warehouse_agent.history.record import DAMAGED_LINE, amount, succeeded
from warehouse_agent.schedule.activity_change import Refreshed
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot


def kept(store: Store, version: Snapshot, name: str) -> Activity | None:
    """Return the activity from before a version's `as_of`; None if it is not known."""
    return Notes.read(store, name).comparison(version).activity


def refreshes(store: Store, name: str) -> list[Refreshed]:
    """Return the refreshes of all rows since the last load, the load first.

    A part says nothing of the rows that it did not compare. Where the columns changed, the number
    of changed rows means something else.
    """
    found: list[Refreshed] = []
    for body in succeeded(store.lines_backwards(PRIVATE, "runs", f"{name}.jsonl")):
        with contextlib.suppress(*DAMAGED_LINE):
            if body.get("rows_left"):
                continue
            kinds = ("rows_inserted", "rows_updated", "rows_deleted")
            changed = 0 if body.get("schema_changed") else sum(int(amount(body[k])) for k in kinds)
            found.append(Refreshed(from_json(body.get("activity")), changed))
            if body["previous_version"] is None:
                break
    return found[::-1]

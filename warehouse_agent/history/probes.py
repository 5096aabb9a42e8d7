"""What probes are compared with: the activity kept with a version, and what refreshes found.

The activity is in the note of the last comparison of all rows, and in the report of each refresh.
What is lost makes a probe say less, never something else.
"""

from __future__ import annotations

from driftline.activity import Activity

from warehouse_agent.history.notes import Notes
from warehouse_agent.history.run_history import History
from warehouse_agent.schedule.activity_change import Refreshed
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot


def kept(store: Store, version: Snapshot, name: str) -> Activity | None:
    """Return the activity from before a version's `as_of`; None if it is not known."""
    return Notes.read(store, name).comparison(version).activity


def refreshes(history: History) -> list[Refreshed]:
    """Return the refreshes of all rows since the last load, the load first.

    A part says nothing of the rows that it did not compare. Where the columns changed, the number
    of changed rows means something else.
    """
    found = [
        Refreshed(line.activity, line.rows.changed if line.counts_changes else 0)
        for line in history.since_load
        if line.rows is not None and not line.is_part
    ]
    return found[::-1]

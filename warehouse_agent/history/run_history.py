"""The history of runs of a fragment or a view: its newest lines, and totals of all older ones.

`_driftline/runs/NAME.jsonl` has one line for each refresh, also for failed ones. A file that has
LINES_BYTES_MAX keeps its newest KEPT_BYTES of lines whole; the older ones are added to the totals
in its first line (`totals`). So what an append writes anew on object stores is bounded as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

from warehouse_agent.events import Event, RefreshCommitted, RefreshFailed
from warehouse_agent.failpoints import Point
from warehouse_agent.history.lines import parse
from warehouse_agent.history.totals import Folded
from warehouse_agent.storage.store import PRIVATE, Store

KEPT_BYTES: Final = 512 << 10  # of lines: some 300 refreshes; forecasts look at 200
LINES_BYTES_MAX: Final = 768 << 10  # of a file: lines are added up once in some 100 refreshes


def append(store: Store, name: str, line: str) -> None:
    """Append a line to a history; add old lines up if there are many.

    Raises:
        WarehouseUnavailable: the history cannot be written.
    """
    store.append_line(line, *_place(name), bytes_max=LINES_BYTES_MAX, shorten=shortened)


def shortened(lines: bytes) -> bytes:
    """Return a history whose older lines are added up; damaged and foreign ones go."""
    older, newer = lines[: -KEPT_BYTES or None], lines[-KEPT_BYTES:]
    cut = len(older) + len(newer.partition(b"\n")[0]) + 1
    folded = reduce(_plus, lines[:cut].split(b"\n"), Folded()).bounded()
    return folded.to_line() + b"\n" + lines[cut:]


def _plus(known: Folded, line: bytes) -> Folded:
    if (found := parse(line)) is not None:
        return known.plus(found)
    return known if (totals := Folded.from_line(line)) is None else known.merged(totals)


def _place(name: str) -> tuple[str, str, str]:
    return PRIVATE, "runs", f"{name}.jsonl"


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A listener that appends each finished report to its fragment's history of runs."""

    store: Store

    def __call__(self, event: Event) -> None:
        """Append the report of a fragment that is done; ignore other events.

        Raises:
            WarehouseUnavailable: the history cannot be written.
        """
        if isinstance(event, RefreshCommitted | RefreshFailed):
            Point.HISTORY_WRITING.reach()
            append(self.store, event.report.name, event.report.to_json())
            Point.HISTORY_WRITTEN.reach()

"""Count the requests that this process makes of buckets, by table and kind.

They are counted where they are made (`s3`), and those of delta-rs where it is asked for something
(`opened_table`), by what that takes. Processes and tasks that work for this one count their own,
which come back with their results (`tasks.processes`, `spark.executors`).

A request belongs to the table whose folder, notes or staged files it concerns; those for a record
of commands, metrics, versions of the warehouse or the table of freshness belong to none. What a
library repeats after a failed answer counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from threading import Lock
from typing import Final

PRIVATE: Final = "_driftline"  # the warehouse's folder for all that is no published table
KEPT: Final = "kept"  # the folder below it with the tables of relations that only views need
# Folders below PRIVATE whose files and folders are named after tables.
_OF_TABLES: Final = {"changes", "fragments", KEPT, "keys", "locks", "runs", "schedule", "staging"}
_ENDINGS: Final = (".jsonl", ".json", ".key")


class Request(StrEnum):
    """Kinds of requests; `PUT`: whatever writes, parts of an upload too."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    DELETE = "delete"


# By table, as its warehouse's root `BUCKET/KEY/` and its name.
Counts = Mapping[tuple[str, str, Request], int]


class RequestCounts:
    """Counts by table and kind; safe for threads."""

    def __init__(self) -> None:
        self._lock, self._roots = Lock(), frozenset[str]()
        self._counts: Counter[tuple[str, str, Request]] = Counter()

    def know(self, root: str) -> None:
        """Count requests below the root of a warehouse, a path `BUCKET/KEY`."""
        self._roots |= {_prefix(root)}

    def made(self, path: str, kind: Request, number: int = 1) -> None:
        """Count requests for a path `BUCKET/KEY`."""
        for root in self._roots:
            if path.startswith(root) and (table := _table_of(path.removeprefix(root))):
                with self._lock:
                    self._counts[root, table, kind] += number
                return

    def add(self, counts: Counts) -> None:
        """Add what another process counted."""
        with self._lock:
            self._counts.update(counts)

    def drained(self) -> Counts:
        """Return all counts, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def taken(self, root: str, table: str) -> dict[str, int]:
        """Return the requests for a table, by kind, and begin its counts anew."""
        of = (_prefix(root), table)
        with self._lock:
            return {kind.value: self._counts.pop((*of, kind), 0) for kind in Request}


def _prefix(root: str) -> str:
    return root.rstrip("/") + "/"


def _table_of(path: str) -> str:
    """Return the table that a path below the root is of; empty: of none."""
    first, *below = path.split("/")
    if first != PRIVATE:
        return first
    if len(below) < 2 or below[0] not in _OF_TABLES:
        return ""
    name = below[1]
    return next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)


REQUESTS: Final = RequestCounts()

"""Typed events of a refresh, and the interface of those that listen to them.

`runs.batch.Runner` passes each event to its listeners, one after the other: the history of
refreshes first, so that a report is on disk before it is printed, then those that the command chose
(the terminal, the answers). A metric or a notification is one more listener. Events of several
sources, and of neighbouring runs of one, come from several threads and are mixed; one is passed at
a time.

Every fragment of a command gets exactly one `RefreshNotStarted`, `RefreshCommitted` or
`RefreshFailed`; the last two directly after its own commit or last failure and before the next
fragment of its source is applied. A refresh does not depend on its listeners: see `Runner`.

The report is not built from events: that would repeat its 30 counts in the types below. The last
event of a fragment carries the finished report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftline.errors import DriftlineError

from warehouse_agent.report import Report


@dataclass(frozen=True, slots=True)
class RefreshStarted:
    """An attempt at the fragment `name` begins; `attempt` counts from 1."""

    name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PhasesExpected:
    """By its history, the steps of the refresh take `seconds` (`planning.time_left.usual`)."""

    name: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase begins: a key of the report's `seconds`. `list` lies within `exchange`."""

    name: str
    phase: str


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The source has read `rows` rows of about `rows_expected`; 0 expected: not known.

    Attributes:
        held_back_s: for which it read more slowly, to spare its database.
        rows_before: of `rows`, staged by earlier attempts at a load.
    """

    name: str
    phase: str  # the source's word for its work, printable, on one line
    rows: int
    rows_expected: int
    held_back_s: float = 0.0
    rows_before: int = 0


@dataclass(frozen=True, slots=True)
class RefreshRetried:
    """Fragments failed with one cause and will be tried again."""

    names: tuple[str, ...]
    error: DriftlineError

    @property
    def text(self) -> str:
        """Return one line for a person: which fragments, and why."""
        details = self.error.details
        cause = f" The cause: {details['cause']}." if "cause" in details else ""
        return f"{', '.join(self.names)}: {self.error.message}{cause} Trying again."


@dataclass(frozen=True, slots=True)
class RefreshCommitted:
    """The fragment is equal to its source, by a new version or without one."""

    report: Report


@dataclass(frozen=True, slots=True)
class RefreshFailed:
    """The fragment was not refreshed, and this command does not try again."""

    report: Report


@dataclass(frozen=True, slots=True)
class RefreshNotStarted:
    """The fragment was left as it is, because of the command's deadline."""

    report: Report


RefreshEnded = RefreshCommitted | RefreshFailed | RefreshNotStarted
Event = RefreshStarted | PhasesExpected | PhaseStarted | RowsRead | RefreshRetried | RefreshEnded
Listener = Callable[[Event], None]


def refresh_ended(report: Report) -> RefreshCommitted | RefreshFailed:
    """Return the last event of a fragment or a view that was started."""
    return RefreshFailed(report) if report.error else RefreshCommitted(report)

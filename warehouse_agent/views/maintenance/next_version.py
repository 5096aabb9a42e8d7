"""The result of computing a view: nothing differs, or the files of its next version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks.change_feed import VersionFeed


class CheckedRows(StrEnum):
    """The rows of a version that were checked: all were computed again, or one slice of 16."""

    TOTAL = "total"
    SLICE = "slice"


@dataclass(frozen=True, slots=True)
class UnchangedView:
    """The published version has the rows that the query gives.

    Attributes:
        java: the version of the Java that computes these rows; None: it is not known.
    """

    base: ViewSnapshot
    java: str | None


@dataclass(frozen=True, slots=True)
class NextVersion:
    """Files of the next version of a view, which no commit names yet.

    Attributes:
        added: new files; `kept`: those of `base` that stay; `removed`: those that go.
        changes: its feed.
        folders: of the table, to remove if the version is not committed.
        java: the version of the Java that computed all its rows; None: it is not known.
    """

    base: ViewSnapshot | None
    layout: ViewLayout
    added: tuple[DataFile, ...]
    kept: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    changes: VersionFeed
    folders: tuple[str, ...]
    checked: CheckedRows
    java: str | None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Return all files of the version."""
        return (*self.added, *self.kept)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(f.rows for f in self.files)


Computed = UnchangedView | NextVersion

"""The configuration of a command that runs for long: read again when its file has changed.

What was deleted from the file is not refreshed any more; a running refresh ends with the settings
with which it began. An unusable file is reported once; the last good one stays in force. [spark]
counts when the process starts, because it has one session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from driftline.errors import DriftlineError, UsageError

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.scheduler.due import SelectionDecision
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import TableSelection, select


@dataclass(frozen=True, slots=True)
class LoopError:
    """An error that ends nothing; `is_former_kept`: a changed file cannot be used, and the
    configuration that was read before still counts."""

    error: DriftlineError
    is_former_kept: bool = False


LoopListener = Callable[[SelectionDecision | LoopError], None]


@dataclass
class Configuration:
    """The newest usable configuration, and what the names of the command line mean in it.

    Attributes:
        patterns: names and globs; none: everything.
        config: as the command read it first.
        listener: is told what cannot be used.
    """

    patterns: Sequence[str]
    config: WarehouseConfig
    listener: LoopListener
    chosen: TableSelection = field(init=False)
    _body: bytes | None = field(init=False)

    def __post_init__(self) -> None:
        """Find what the patterns mean. Raises UsageError: one matches nothing."""
        self.chosen = select(self.config, self.patterns, not self.patterns)
        self._body = _read(self.config.file)

    def renew(self) -> None:
        """Read the file again if it has changed."""
        body = _read(self.config.file)
        if body == self._body:
            return
        self._body = body
        try:
            config = load(self.config.file)
            self.config, self.chosen = config, self._selected(config)
        except DriftlineError as error:
            self.listener(LoopError(error, is_former_kept=True))

    def _selected(self, config: WarehouseConfig) -> TableSelection:
        """Return what the patterns mean; tell which mean nothing any more."""
        left = []
        for pattern in self.patterns:
            try:
                select(config, [pattern], False)
                left.append(pattern)
            except UsageError as gone:
                self.listener(LoopError(gone))
        if self.patterns and not left:
            return TableSelection(())
        return select(config, left, not self.patterns)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:  # `load` says what is wrong
        return None

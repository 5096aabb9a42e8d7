"""Events of the loop of `run`, for a listener that tells a person; refreshes have their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftline.errors import DriftlineError

from warehouse_agent.scheduler.due import SelectionDecision


@dataclass(frozen=True, slots=True)
class LookEnded:
    """The loop looked what is due; `file`: the name of the configuration."""

    decisions: SelectionDecision
    file: str


@dataclass(frozen=True, slots=True)
class ConfigurationRefused:
    """The changed configuration cannot be used: the one that was read before still counts."""

    error: DriftlineError


@dataclass(frozen=True, slots=True)
class LoopFailed:
    """A pattern means nothing any more, or refreshes could not begin; the loop goes on."""

    error: DriftlineError


LoopEvent = LookEnded | ConfigurationRefused | LoopFailed
LoopListener = Callable[[LoopEvent], None]

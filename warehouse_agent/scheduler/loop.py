"""`run`: refresh what is due, again and again, until the process is asked to end.

SIGTERM ends it after the refreshes that are at work, and starts nothing else that is due; a second
one abandons them as Ctrl-C does: nothing unproven is published. A fragment that failed waits longer
each time, so that a source that is down is not asked without end. A source that is closed for some
hours is no failure: the history says until when, and then the fragment is due. A changed
warehouse.toml is read before each look.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from driftline.errors import DriftlineError, InternalError

from warehouse_agent.change_models.memory import LearnedMemories
from warehouse_agent.config import WarehouseConfig
from warehouse_agent.scheduler.configuration import Configuration, LoopError, LoopListener
from warehouse_agent.scheduler.due import gains, look
from warehouse_agent.timetable.retry import wait_s
from warehouse_agent.views.selection import TableSelection, select

LOOK_S = 600.0  # the longest time without a look: others may refresh, too
PAUSE_S = 1.0  # the shortest

Looked = tuple[list[str], list[tuple[str, float]]]
Refresh = Callable[
    [WarehouseConfig, TableSelection, Mapping[str, float], Callable[[], bool]], Sequence[int]
]


@dataclass
class ScheduleLoop:
    """The loop, without clock and signals of its own.

    Attributes:
        look: the names of fragments that are due at a moment, and of the others, with theirs.
        refresh: refreshes fragments; returns an exit code for each.
        clock: seconds since 1970.
        wait: waits for seconds; returns True if the loop is to end.
        is_ending: returns True if the loop is to end.
    """

    look: Callable[[float], Looked]
    refresh: Callable[[Sequence[str]], Sequence[int]]
    clock: Callable[[], float]
    wait: Callable[[float], bool]
    is_ending: Callable[[], bool] = lambda: False
    failed: dict[str, tuple[int, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Refresh what is due until `wait` says to end."""
        while not self.wait(self.turn()):
            pass

    def turn(self) -> float:
        """Refresh what is due now; return the seconds until the next look."""
        now = self.clock()
        due, later = self.look(now)
        held = [(name, at) for name, (_, at) in self.failed.items() if name in due and at > now]
        ready = [name for name in due if name not in dict(held)]
        if ready and not self.is_ending():
            self._note(ready, self.refresh(ready))
            return PAUSE_S
        first = min((at for _, at in (*later, *held)), default=now + LOOK_S)
        return min(max(first - now, PAUSE_S), LOOK_S)

    def _note(self, names: Sequence[str], codes: Sequence[int]) -> None:
        """Hold each fragment that failed for longer than the last time."""
        for name, code in zip(names, codes, strict=True):
            times, _ = self.failed.pop(name, (0, 0.0))
            if code:
                self.failed[name] = (times + 1, self.clock() + wait_s(times + 1))


def run(
    config: WarehouseConfig,
    patterns: Sequence[str],
    refresh: Refresh,
    listener: LoopListener,
) -> None:
    """Refresh what is due until SIGTERM; before each look, read a changed configuration again.

    Args:
        patterns: names and globs of fragments and views; none: all.
        refresh: refreshes a selection, given what is gained by each fragment (`due.gains`) and what
            tells whether nothing more is to be started; returns the exit codes of its fragments,
            then others.
        listener: is told the result of each look, and errors that end nothing.

    Raises:
        UsageError: a pattern matches nothing.
        BrokenPipeError: nobody reads the answers any more.
        KeyboardInterrupt: Ctrl-C, or a second SIGTERM.
    """
    learned, current = LearnedMemories(), Configuration(patterns, config, listener)
    undecided: list[str] = []

    def looked(now: float) -> Looked:
        current.renew()
        moment = datetime.fromtimestamp(now, UTC)
        decisions = look(current.config, current.chosen, moment, learned)
        undecided[:] = decisions.undecided
        listener(decisions)
        return decisions.due + undecided, [(one.name, one.decision.at) for one in decisions.later]

    def refreshed(names: Sequence[str]) -> Sequence[int]:
        left_out = [view.name for view in current.chosen.left_out]
        selection = select(current.config, names, False, left_out)
        in_order = {f.name: n for n, f in enumerate(selection.fragments)}
        try:
            gained = gains(current.config, [*in_order], time.time(), learned)
            codes = refresh(current.config, selection, gained, lambda: ending.is_asked)
        except DriftlineError as error:
            listener(LoopError(error))
            return [error.exit_code] * len(names)
        # What cannot be decided is due again at once, so it waits like what failed.
        again = dict.fromkeys(undecided, InternalError.exit_code)
        return [codes[in_order[name]] or again.get(name, 0) for name in names]

    ending = _Ending()
    before = signal.signal(signal.SIGTERM, ending.on_signal)
    try:
        ScheduleLoop(looked, refreshed, time.time, ending.wait, lambda: ending.is_asked).run()
    except _EndedError:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


class _EndedError(Exception):
    """A first SIGTERM came while nothing was refreshed."""


class _Ending:
    """The state of the request to end. No lock: a handler runs wherever its thread is."""

    def __init__(self) -> None:
        self.is_asked = self._is_waiting = False

    def on_signal(self, *_: object) -> None:
        """Note the first SIGTERM, and end a wait; interrupt at the second."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        if self._is_waiting:
            raise _EndedError

    def wait(self, seconds: float) -> bool:
        """Wait; return True if the loop is to end."""
        self._is_waiting = True
        try:
            if not self.is_asked:
                time.sleep(seconds)
        except _EndedError:
            return True
        finally:
            self._is_waiting = False
        return self.is_asked

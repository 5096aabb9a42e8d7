"""Threads of a command that serves several sources side by side, and their places.

A source is served while it has one of `sources_at_once` places. Places are given in the order in
which they were asked for. A source that waits before it tries again leaves its place meanwhile, so
that sources which do not answer keep no other waiting; afterwards it is the first to get one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

NAME = "driftline-source"  # of each thread begins with it
SIGNALS_S = 0.2  # the longest time in which Ctrl-C is not noticed


class CommandStopped(BaseException):
    """The command ends; raised in its threads."""


class SourceSlots:
    """A number of places, and those who wait for one; safe for threads."""

    def __init__(self, count: int) -> None:
        self._guard = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Event] = deque()

    def ask(self, *, first: bool = False) -> threading.Event:
        """Return an event that is set when a place is given; `first`: before those who wait."""
        given = threading.Event()
        with self._guard:
            if first:
                self._waiting.appendleft(given)
            else:
                self._waiting.append(given)
            self._give()
        return given

    def leave(self) -> None:
        """Leave a place to the next one who waits."""
        with self._guard:
            self._free += 1
            self._give()

    def lift(self) -> None:
        """Give a place to everyone from now on, because the command ends."""
        with self._guard:
            self._free += 1 << 30
            self._give()

    def _give(self) -> None:
        while self._free > 0 and self._waiting:
            self._free -= 1
            self._waiting.popleft().set()


class SourceSlot:
    """The place of one source, used by one thread at a time. It is asked for at once."""

    def __init__(self, places: SourceSlots) -> None:
        self._places = places
        self._given = places.ask()
        self._is_held = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the place, and hold it."""
        self._enter()
        try:
            yield
        finally:
            if self._is_held:
                self._leave()

    def ask(self) -> None:
        """Ask for the place again, behind the others."""
        self._given = self._places.ask()

    def pause(self, sleep: Callable[[float], None], seconds: float) -> None:
        """Sleep without the place, and wait for it again; an exception of `sleep` leaves it."""
        self._leave()
        sleep(seconds)
        self._given = self._places.ask(first=True)
        self._enter()

    def _enter(self) -> None:
        self._given.wait()
        self._is_held = True

    def _leave(self) -> None:
        self._is_held = False
        self._places.leave()


class Threads:
    """Threads that end together: an exception of one is raised where they are waited for."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def start(self, function: Callable[[], None]) -> threading.Thread:
        """Call a function in a thread; the process does not wait for it at its end."""

        def run() -> None:
            try:
                function()
            except BaseException as problem:
                self._ended.put(problem)
            else:
                self._ended.put(None)

        name = f"{NAME}-{len(self._threads)}"
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def wait(self) -> None:
        """Wait until all have ended, also those that they start. Raise the first exception.

        It wakes up often: a signal is handled by the main thread, and wakes it up only if the
        system happened to deliver it to that thread.
        """
        ended = 0
        while ended < len(self._threads):
            try:
                problem = self._ended.get(timeout=SIGNALS_S)
            except queue.Empty:
                continue
            if problem is not None:
                raise problem
            ended += 1

    def join(self, seconds: float) -> None:
        """Wait until all have ended, but no longer than `seconds`."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(until - time.monotonic(), 0))

"""Places of sources, and threads that end together; no source and no clock."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from warehouse_agent.runs.threads import CommandStopped, SourceSlot, SourceSlots, Threads

S_MAX = 30.0


class Unforeseen(Exception):
    """No error of ours."""


def test_places_are_given_in_order() -> None:
    places = SourceSlots(2)
    asked = [places.ask() for _ in range(4)]
    assert [given.is_set() for given in asked] == [True, True, False, False]
    ahead = places.ask(first=True)
    places.leave()
    assert (ahead.is_set(), asked[2].is_set()) == (True, False)
    places.leave()
    assert [given.is_set() for given in asked] == [True, True, True, False]
    places.lift()
    assert asked[3].is_set()
    assert places.ask().is_set()


def test_who_pauses_leaves_the_place_and_is_the_next() -> None:
    order: list[str] = []
    in_other, may_end = threading.Event(), threading.Event()

    class Watched(SourceSlots):
        """Places that the others hold until somebody asks to be the next."""

        def ask(self, *, first: bool = False) -> threading.Event:
            given = super().ask(first=first)
            if first:
                may_end.set()
            return given

    places = Watched(1)
    one, other, third = SourceSlot(places), SourceSlot(places), SourceSlot(places)

    def serve_other() -> None:
        with other.held():
            in_other.set()
            may_end.wait(S_MAX)
            order.append("other")

    def serve_third() -> None:
        with third.held():
            order.append("third")

    threads = Threads()
    with one.held():
        threads.start(serve_other)
        threads.start(serve_third)

        def sleep(_seconds: float) -> None:
            assert in_other.wait(S_MAX), "the place was left"

        one.pause(sleep, 1.0)
        order.append("one")
    threads.wait()
    assert order == ["other", "one", "third"]
    assert places.ask().is_set(), "all was left"


def test_an_exception_in_a_pause_leaves_the_place() -> None:
    places = SourceSlots(1)
    place = SourceSlot(places)

    def sleep(_seconds: float) -> None:
        raise CommandStopped

    with pytest.raises(CommandStopped), place.held():
        place.pause(sleep, 1.0)
    assert places.ask().is_set()
    assert not places.ask().is_set(), "it was left once"


def test_threads_end_together() -> None:
    threads, done = Threads(), list[str]()

    def start_another() -> None:
        threads.start(lambda: done.append("inner"))
        done.append("outer")

    threads.start(start_another)
    threads.wait()
    threads.join(S_MAX)
    assert sorted(done) == ["inner", "outer"]


@pytest.mark.parametrize("why", [CommandStopped, Unforeseen])
def test_the_first_exception_is_raised(why: type[BaseException]) -> None:
    """Also that a thread stopped: the others may wait for what only the command can end."""
    threads, has_ended = Threads(), threading.Event()

    def fail() -> None:
        raise why

    def wait() -> None:
        has_ended.wait(S_MAX)

    threads.start(fail)
    threads.start(wait)
    with pytest.raises(why):
        threads.wait()
    has_ended.set()
    threads.join(S_MAX)


def test_a_signal_that_another_thread_receives() -> None:
    """Python handles it in the main thread, which a signal of another thread does not wake up."""
    threads, is_blocked, is_over = Threads(), threading.Event(), threading.Event()
    waited: list[bool] = []

    def interrupted() -> None:
        is_blocked.wait(S_MAX)
        os.kill(os.getpid(), signal.SIGINT)
        waited.append(is_over.wait(S_MAX))

    threads.start(interrupted)
    known = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    is_blocked.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.wait()
        assert not waited, "the thread goes on"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, known)
        is_over.set()
        threads.join(S_MAX)

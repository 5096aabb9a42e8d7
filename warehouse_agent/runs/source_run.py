"""The runs of one source: each is prepared, compared and finished, overlapping with its neighbours.

Two threads serve a source with several runs. Each takes a run and keeps it to its end, so at most
two runs are in memory. A phase is done for one run at a time, in the order of the runs: while a run
is compared, the thread of the run before finishes that one and prepares the run after. So a run is
taken, and its locks with it, when the one before begins to be compared.

A retryable error is retried a few times, after longer and longer pauses; what was staged is kept.
An attempt that staged more than there was does not count (`planning.attempts`).
Meanwhile no other run is compared: the source is asked by one run at a time, and whatever was
learnt is known to the next run before it asks.

Runs of one source learn from each other. If the source was not reached in all attempts of a run, no
later run asks it. If its database was not available, or its DBA allowed nothing now, for all
fragments of a run, each later run has one attempt until something else happens. Else hundreds of
fragments would wait, one run after the other, for what does not come back.

Rejected: a queue between the phases and a thread for each. It holds three runs, or four with those
in the queues, and a run that is tried again would have to go back to an earlier thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import tenacity
from driftline.errors import (
    DatabaseUnavailable,
    DriftlineError,
    InternalError,
    MalformedMessage,
    NotNow,
    SourceUnreachable,
    Unauthenticated,
    VersionMismatch,
)

from warehouse_agent.config import Fragment, Source
from warehouse_agent.events import RefreshRetried
from warehouse_agent.planning.attempts import AttemptCount, Reached, Stuck
from warehouse_agent.report import Report
from warehouse_agent.runs.attempt import Attempt
from warehouse_agent.runs.command import PrecedingRun, RefreshCommand
from warehouse_agent.transport import preflight
from warehouse_agent.transport.channel import SourceChannel

_OF_SOURCE = (DatabaseUnavailable, NotNow)
# Another connection may have none of these: its certificates and protocol are read again.
_OF_LINK = (SourceUnreachable, MalformedMessage, Unauthenticated, VersionMismatch, InternalError)

# A link that was called over less long ago is used again. gRPC's keep-alive rests between two
# streams, so a firewall may have dropped an older one.
LINK_IDLE_S_MAX = 20.0


class SourceRuns:
    """Runs of one source that follow each other in one command. Call `close` at the end.

    `reports` has those of the runs that were begun.
    """

    def __init__(
        self, command: RefreshCommand, source: Source, pause: Callable[[float], None] | None = None
    ) -> None:
        """Serve `source`; `pause` waits for seconds before another attempt, or
        `CommandServices.sleep`."""
        self.source = source
        self.reports: list[Report] = []
        self._command, self._pause = command, pause or command.services.sleep
        self._line = _Line(source, command.link)
        # Each is held by the run that is in the phase. A thread that holds `_exchanging` may try
        # again; one that holds `_finishing` waits for nothing else.
        self._preparing = threading.Lock()
        self._exchanging = threading.RLock()
        self._finishing = threading.Lock()
        self._before = PrecedingRun()  # the newest run that was compared
        self._is_reached = not command.is_deferred  # below: changed by the run that exchanges
        self._lost: DriftlineError | None = None  # why the source is not asked any more
        self._is_away = False  # all of the newest run failed by _OF_SOURCE

    def close(self) -> None:
        """Close the link; from another thread this ends an exchange."""
        self._line.close()

    def refresh(self, left: deque[tuple[Fragment, ...]]) -> None:
        """Refresh the runs of `left` until none is left; two threads may share them.

        The report of a fragment is emitted as soon as the fragment is done.
        """
        while (run := self._refresh_next(left)) is not None:
            self._command.settle(fragment.name for fragment in run)

    def _refresh_next(self, left: deque[tuple[Fragment, ...]]) -> tuple[Fragment, ...] | None:
        """Refresh the next run and return it; return None if there is none.

        The locks of its fragments are held from its preparation until all are done; those of
        fragments with views until the turn of their component is over.
        """
        with contextlib.ExitStack() as locks, contextlib.ExitStack() as turn:
            with self._preparing:
                if not left:
                    return None
                whole = left.popleft()
                begun = self._command.services.begun
                reports = {f.name: begun(f.name, f.source.name) for f in whole}
                self.reports += reports.values()
                run, takes_s = self._command.startable(whole, reports, self._before)
                if (attempt := self._prepared(run, reports, locks)) is None:
                    return whole
                turn.enter_context(self._exchanging)
                self._before = PrecedingRun(time.monotonic() + takes_s)
                locks.callback(self._before.is_done.set)
            if self._lost is None:
                self._linked(attempt, attempt.compare)
            else:
                attempt.fail_all(self._lost)
            if not attempt.has_retryable:
                self._is_away = False
                turn.close()
            ours, failed = attempt.fragments, self._finished(attempt)
            reached = attempt.reached
            del attempt  # what it holds is not needed beside another one
            if failed:
                turn.enter_context(self._exchanging)
                self._try_again(ours, reports, failed, reached)
        return whole

    def _prepared(
        self,
        fragments: list[Fragment],
        reports: dict[str, Report],
        locks: contextlib.ExitStack,
    ) -> Attempt | None:
        """Begin the first attempt at a run; return None if nothing of it is to be compared."""
        if is_lost := self._lost is not None:
            ours = fragments
        elif ours := self._locked(fragments, reports, locks):
            self._reach(ours, reports)
        if ours and self._lost is None:
            return self._begun(ours, reports)
        with self._exchanging:  # the runs before have reported why
            for fragment in ours:
                assert self._lost is not None
                self._command.refused(reports[fragment.name], self._lost, is_ours=not is_lost)
        return None

    def _reach(self, fragments: Iterable[Fragment], reports: dict[str, Report]) -> None:
        """Find out once whether anything listens at the source's address, for these fragments."""
        if self._is_reached:
            return
        try:
            preflight.reach(self.source)
            self._is_reached = True
        except DriftlineError as error:
            self._lost = error
            for fragment in fragments:
                reports[fragment.name].attempts = 1

    def _locked(
        self, fragments: Iterable[Fragment], reports: dict[str, Report], locks: contextlib.ExitStack
    ) -> list[Fragment]:
        """Take the locks of fragments; return those that are ours now, report the others."""
        ours = []
        for fragment in fragments:
            try:
                if (turn := self._command.turns.get(fragment.name)) is not None:
                    turn.lock(fragment.name)
                else:
                    locks.enter_context(self._command.services.store.lock(fragment.name))
                ours.append(fragment)
            except DriftlineError as locked:
                self._command.refused(reports[fragment.name], locked, is_ours=False)
        return ours

    def _begun(self, fragments: Sequence[Fragment], reports: dict[str, Report]) -> Attempt:
        """Begin an attempt at fragments, and prepare them."""
        attempt = Attempt(self._command, fragments, reports)
        self._linked(attempt, attempt.prepare)
        return attempt

    def _finished(self, attempt: Attempt) -> dict[str, DriftlineError]:
        """Finish an attempt; return its retryable errors by fragment name."""
        with self._finishing:
            return attempt.finish()

    def _linked(self, attempt: Attempt, phase: Callable[[SourceChannel], None]) -> None:
        """Lend the link to a phase of an attempt; give it up if it may be why fragments fail."""
        known = set(attempt.failed)
        try:
            with self._line.used() as link:
                try:
                    phase(link)
                except DriftlineError as lost:
                    attempt.fail_all(lost)
                errors = (error for name, error in attempt.failed.items() if name not in known)
                if any(isinstance(error, _OF_LINK) for error in errors):
                    self._line.drop(link)
        except DriftlineError as unreadable:  # a certificate
            attempt.fail_all(unreadable)

    def _try_again(
        self,
        fragments: Sequence[Fragment],
        reports: dict[str, Report],
        failed: dict[str, DriftlineError],
        reached: dict[str, Reached],
    ) -> None:
        """Try a run until none of it has a retryable error; learn for later runs.

        Args:
            failed: the retryable errors of the first attempt, by fragment name.
            reached: how far it came.
        """
        left = list(fragments)
        count = AttemptCount(1 if self._is_away or self._lost else self._command.attempts)
        for number, state in enumerate(self._retrying(count.limit), 1):
            if number > 1:
                attempt = self._begun(left, reports)
                self._linked(attempt, attempt.compare)
                failed, reached = self._finished(attempt), attempt.reached
                del attempt
            count.add(reached, is_last=self._command.is_closed(left))
            if not count.is_over:
                for error, names in _alike(failed):
                    self._command.services.emit(RefreshRetried(names, error))
            left = _broken_last([f for f in left if f.name in failed], failed)
            state.retry_state.attempt_number = count.counted
            state.retry_state.set_result(failed)
        for fragment in fragments:
            if (last := failed.get(fragment.name)) is not None:
                report, stuck = reports[fragment.name], count.stuck(fragment.name)
                is_cut = isinstance(last, SourceUnreachable) and fragment.name in reached
                if is_cut and stuck is not None:
                    report.explain(_outlasted(stuck, is_load=report.previous_version is None))
                self._command.finished(report)
        away = [error for error in failed.values() if isinstance(error, _OF_SOURCE)]
        was_away, self._is_away = self._is_away, len(away) == len(fragments)
        lost = [error for error in failed.values() if isinstance(error, SourceUnreachable)]
        # One relation may break every stream: then the source still answers.
        if lost and not was_away and self._lost is None and not self._answers():
            self._lost = lost[0]

    def _retrying(self, attempts: int) -> tenacity.Retrying:
        """Return the loop of the attempts at a run, which goes on while an attempt has failures.

        The number of an attempt is that of those which count.
        """
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts),
            wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=self._command.wait_s_max),
            retry=tenacity.retry_if_result(bool),
            sleep=self._pause,
            retry_error_callback=lambda _state: None,
        )

    def _answers(self) -> bool:
        """Return True if the source answers on a new connection."""
        try:
            with self._command.link(self.source) as link:
                link.describe("")
        except DriftlineError:
            return False
        return True


class _Line:
    """The link to a source, which threads share; another one after it broke or rested too long."""

    def __init__(self, source: Source, opened: Callable[[Source], SourceChannel]) -> None:
        """Lend links to `source` that `opened` makes."""
        self._source, self._opened = source, opened
        self._guard = threading.Lock()
        self._link: SourceChannel | None = None
        self._used: list[SourceChannel] = []  # once for each use now

    @contextlib.contextmanager
    def used(self) -> Iterator[SourceChannel]:
        """Lend the link. Raise ConfigurationError: its certificates cannot be read."""
        with self._guard:
            link = self._link
            if link is None or link.rested_s > LINK_IDLE_S_MAX:
                self._link = self._opened(self._source)
                if link is not None:
                    self._close_unused(link)
                link = self._link
            self._used.append(link)
        try:
            yield link
        finally:
            with self._guard:
                self._used.remove(link)
                self._close_unused(link)

    def drop(self, link: SourceChannel) -> None:
        """Lend this link to nobody any more; it is closed when nobody uses it."""
        with self._guard:
            if self._link is link:
                self._link = None
            self._close_unused(link)

    def close(self) -> None:
        """Close the link, also one that is used now."""
        with self._guard:
            links = {*self._used, *filter(None, [self._link])}
            self._link = None
        for link in links:
            link.close()

    def _close_unused(self, link: SourceChannel) -> None:
        if link is not self._link and link not in self._used:
            link.close()


def _broken_last(fragments: list[Fragment], failed: dict[str, DriftlineError]) -> list[Fragment]:
    """Return fragments in the order of the next attempt: the one that broke the stream comes last.

    The fragments behind it in the run have its error, so that it is the first with one.
    """
    broken = [f for f in fragments if isinstance(failed[f.name], SourceUnreachable)][:1]
    return [f for f in fragments if f not in broken] + broken


def _outlasted(stuck: Stuck, *, is_load: bool) -> tuple[str, str] | None:
    """Return what attempts mean that a scan outlasts, and what to do; None: others."""
    if not stuck.is_outlasted:
        return None
    message = (
        f"The line broke {stuck.times:,} times in turn before a new row came, each time within "
        f"{stuck.held_s:,.0f} s, and a scan of the relation takes about {stuck.scan_s:,.0f} s."
    )
    remedy = "Refresh it when the line holds for longer, or ask the DBA to shorten the scan: "
    remedy += "`limits.readers` (PostgreSQL), or relations of fewer rows each (`where`)."
    if not is_load:
        remedy += " Or set `incremental`: each tile then has an exchange of its own."
    return message, remedy


def _alike(failed: dict[str, DriftlineError]) -> list[tuple[DriftlineError, tuple[str, ...]]]:
    """Return each error once, with the names of the fragments that failed by it."""
    alike: dict[int, tuple[DriftlineError, list[str]]] = {}
    for name, error in failed.items():
        alike.setdefault(id(error), (error, []))[1].append(name)
    return [(error, tuple(names)) for error, names in alike.values()]

"""One stream of requests, answered: the conversation around the comparisons.

Two threads: a worker owns the database session, runs one `Comparison` after the other and puts
replies into a small outbox; the RPC's own thread takes them out, and says `Progress` when none came
for a while, so that heartbeats do not depend on the database. The outbox is bounded, so a slow
reader slows the scan instead of filling memory.

Invariants: the session is opened by the first `Open` that may have a relation and closed by the
thread that opened it; it ends when the stream ends, when the client says nothing or takes nothing
for `idle_timeout_s` (sooner before its first `Open`, or while others wait for its place), and after
an error that leaves it unusable. A relation that is not published and one that is not for this
client cost the same nothing: no SQL. What was refused ends a relation, not the stream; requests
that were already on their way to it are passed over.

Rejected: heartbeats from inside the scan; one slow statement and the warehouse gives up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import grpc
from driftline import wire_pb2 as pb
from driftline.errors import (
    DatabaseUnavailable,
    DriftlineError,
    InternalError,
    LimitExceeded,
    NotNow,
    RecipeChanged,
    SnapshotLost,
)
from driftline.limits import NO_PROGRESS_S, OPEN_S
from driftline.peer_text import one_line

from source_agent.budgets.audit import NAME_CHARACTERS_MAX, Answer
from source_agent.budgets.budget import GovernedSession, Stopped
from source_agent.engines.interface import Relation, Shape
from source_agent.methods.comparison import Comparison, Tally
from source_agent.methods.request_validation import check_release, out_of_place
from source_agent.server.catalogue import AgentState, Client, describe
from source_agent.server.outbox import Outbox
from source_agent.server.refusal import known, refusal

SILENT_S = NO_PROGRESS_S  # on a place for a scan that another client waits for

# After these the session may be in no state to answer for another relation.
_BREAKS_SESSION = (DatabaseUnavailable, SnapshotLost, InternalError)

_log = logging.getLogger("driftline.source")


class Conversation:
    """One Exchange stream."""

    def __init__(
        self,
        source: AgentState,
        client: Client,
        requests: Iterator[pb.Request],
        *,
        cancel: Callable[[], object] = lambda: None,
    ) -> None:
        self._source, self._client, self._cancel = source, client, cancel
        self._requests = self._received(requests)
        self._outbox = Outbox()
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of the session's being there
        self._session: GovernedSession | None = None
        self._interrupted = False
        self._opened_at = 0.0
        self._waiting_since: float | None = time.monotonic()
        self._sending_since: float | None = None  # gRPC has a reply that the client does not take
        self._tally = Tally()
        self._idle_s = source.config.database.limits.idle_s
        self._place = ExitStack()  # of the session
        self._holds_slot = False
        self._is_accepted = False  # an Open came that names a relation published to this client
        self._ended_as = "cancelled"  # what the audit says of what is stopped from outside
        self.worker = threading.Thread(target=self._work, name="exchange", daemon=True)

    def replies(self) -> Iterator[pb.Reply]:
        """What the RPC sends: the answers, and `Progress` while they are being made."""
        self.worker.start()
        try:
            while True:
                reply = self._outbox.take(self._source.heartbeat_s)
                error = self._overdue() if reply is None else None
                if error is not None:
                    reply = pb.Reply(refused=refusal(error))
                elif reply is None and self._waiting_since is None:
                    reply = pb.Reply(progress=self._progress())
                if reply is not None:
                    self._sending_since = time.monotonic()
                    yield reply
                    self._sending_since = None
                if error is not None:
                    return
        except Stopped:
            return
        finally:
            self._sending_since = None
            self.stop()

    def look(self) -> None:
        """Cancel the RPC if it is held up in sending for too long. From the watchdog's thread."""
        since = self._sending_since
        held_s = 0.0 if since is None else time.monotonic() - since
        if held_s < min(self._source.heartbeat_s, self._idle_s):
            return  # a refusal on its way is not cut off
        if held_s >= self._idle_s or self._is_wanted(held_s) or self._overdue(probes=False):
            self._sending_since = None  # once is enough
            self._cut(held_s)

    def _cut(self, silent_s: float) -> None:
        label = one_line(self._client.label, NAME_CHARACTERS_MAX)
        _log.warning("%s took no reply for %g s", label, silent_s)
        self._stopping.set()  # before the worker sees that the requests have ended
        self._cancel()

    def _progress(self) -> pb.Progress:
        t = self._tally
        return pb.Progress(phase=t.phase, rows=t.rows_read, rows_expected=t.rows_expected)

    def stop(self) -> None:
        """Ends the work soon, from any thread: the client left, or the agent is stopped.

        It does not wait: gRPC calls it by the thread that serves everybody, and a dead database
        takes its time to be interrupted.
        """
        self._stopping.set()
        self._outbox.close()
        threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        with self._lock:  # the session is not closed before it was interrupted
            if self._session is not None and not self._interrupted:
                self._interrupted = True
                self._session.interrupt()

    # The worker's thread

    def _work(self) -> None:
        refused = False
        try:
            for request in self._requests:
                if request.WhichOneof("message") == "open":
                    refused = self._answer(request)
                elif not refused:
                    self._deliver(pb.Reply(refused=refusal(out_of_place(request))))
                    break
        except (Stopped, grpc.RpcError):
            pass
        except Exception:
            _log.exception("an exchange ended by a mistake of the agent")
        finally:
            self._close_session()
            self._place.close()
            self._outbox.close()

    def _received(self, requests: Iterator[pb.Request]) -> Iterator[pb.Request]:
        """The requests, noting since when the client is being waited for."""
        while True:
            self._waiting_since = time.monotonic()
            request = next(requests, None)
            if request is None:
                return
            self._waiting_since = None
            if self._stopping.is_set():
                raise Stopped
            yield request

    def _answer(self, request: pb.Request) -> bool:
        """Answers one `Open`; whether it was refused."""
        opening = request.open
        started = time.monotonic()
        answer = Answer()
        self._tally = answer.tally
        error: DriftlineError | None = None
        try:
            check_release(request)
            self._compare(opening, answer)
        except (Stopped, grpc.RpcError):
            answer.outcome = self._ended_as
            raise
        except Exception as problem:
            if self._stopping.is_set():
                answer.outcome = self._ended_as
                raise Stopped from None
            error = known(problem)
            answer.outcome = error.code
        finally:
            self._note(opening, answer, time.monotonic() - started)
        if isinstance(error, _BREAKS_SESSION):
            self._close_session()
        else:
            self._pause_session()  # the client may take its time: no writer waits for it
        if error is None:
            return False
        description = None
        if isinstance(error, RecipeChanged) and answer.shape is not None:
            description = describe(answer.shape, self._source.config.budget)
        self._deliver(pb.Reply(refused=refusal(error, description)))
        return True

    def _compare(self, opening: pb.Open, answer: Answer) -> None:
        source = self._source
        published = source.served_relation(opening.relation, opening.protocol, self._client)
        self._is_accepted = True
        source.governor.check()
        if self._session is None:
            self._place.close()
            self._place.enter_context(source.governor.session(self._stopping, self._client.label))
        with source.governor.slot(self._stopping, self._client.label), self._holding_slot():
            session, shape = self._described(published.relation)
            answer.shape = shape
            answer.tally.phase = "scan"
            comparison = Comparison(session, shape, opening, answer.tally, source.governor.pool)
            # Closing the answer closes the scan that it is in, when it ends before its end.
            with closing(comparison.answer(self._requests)) as replies:
                for reply in replies:
                    self._check_age()
                    self._deliver(reply)
                    answer.count(reply)

    def _deliver(self, reply: pb.Reply) -> None:
        self._source.governor.wait_bytes(reply.ByteSize(), self._stopping)
        began = time.monotonic()
        while not self._outbox.put(reply, min(SILENT_S, self._idle_s)):
            silent_s = time.monotonic() - began
            if silent_s >= self._idle_s or self._is_wanted(silent_s):
                self._cut(silent_s)
                raise Stopped

    # The session

    def _open_session(self) -> GovernedSession:
        if self._session is None:
            if self._stopping.is_set():
                raise Stopped
            session = GovernedSession(
                self._source.engine.open(),
                self._source.governor,
                self._stopping,
                self._check_age,
                self._source.config.database.limits,
            )
            self._opened_at = time.monotonic()
            with self._lock:
                self._session = session
            if self._stopping.is_set():  # meanwhile: `stop` may have found nothing to interrupt
                raise Stopped
        return self._session

    def _described(self, relation: Relation) -> tuple[GovernedSession, Shape]:
        """The session and the shape; a session that died between relations, or whose snapshot does
        not cover this one, is renewed."""
        was_open = self._session is not None
        session = self._open_session()
        try:
            return session, session.describe(relation)
        except (DatabaseUnavailable, SnapshotLost):
            if not was_open:
                raise
        self._close_session()
        session = self._open_session()
        return session, session.describe(relation)

    def _close_session(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except Exception:
                _log.exception("a database session did not close")

    def _pause_session(self) -> None:
        try:
            if self._session is not None:
                self._session.pause()
        except DriftlineError:
            self._close_session()

    def _check_age(self) -> None:
        longest = self._source.config.budget.snapshot_s
        if longest is not None and time.monotonic() - self._opened_at > longest:
            raise SnapshotLost(
                f"The source's DBA lets one snapshot live {longest:g} s (limits.snapshot_seconds)."
            )

    def _overdue(self, *, probes: bool = True) -> DriftlineError | None:
        """Why neither a client that is silent is waited for any longer, nor a statement from which
        nothing comes, between whose batches the budget would be looked at. Without `probes` it
        does not ask the database, and does not block."""
        since = self._waiting_since
        silent_s = 0.0 if since is None else time.monotonic() - since
        if silent_s > OPEN_S and not self._is_accepted:
            self._note(pb.Open(), Answer(LimitExceeded.code), silent_s)
            return LimitExceeded(
                f"The warehouse did not say in {OPEN_S:g} s which relation it wants.",
                remedy="Run the refresh again.",
            )
        if self._is_wanted(silent_s):
            return NotNow(
                f"The warehouse sent nothing for {SILENT_S:g} s, and another client waits for its "
                "scan place (limits.scans_at_once).",
                remedy="Run the refresh again; nothing was published and what arrived is kept.",
            )
        if silent_s > self._idle_s:
            return LimitExceeded(
                f"The warehouse sent nothing for {self._idle_s:g} s (database.idle_timeout_s).",
                remedy="Run the refresh again; nothing was published and what arrived is kept.",
            )
        try:
            if since is None:
                self._source.governor.check()
            session = self._session
            if session is not None:
                self._check_age()
                if probes and (error := session.watch.dead()):
                    raise error
        except (NotNow, SnapshotLost, DatabaseUnavailable) as error:
            self._ended_as = error.code
            return error
        return None

    def _is_wanted(self, silent_s: float) -> bool:
        """Return True if a client that is silent for too long holds a place another waits for."""
        slots = self._source.governor.slots
        if silent_s < SILENT_S or not self._holds_slot:
            return False
        if is_wanted := slots.wanted_by_others(self._client.label):
            self._ended_as = NotNow.code
        return is_wanted

    @contextmanager
    def _holding_slot(self) -> Iterator[None]:
        self._holds_slot = True
        try:
            yield
        finally:
            self._holds_slot = False

    def _note(self, opening: pb.Open, answer: Answer, seconds: float) -> None:
        self._source.audit.write(answer.entry(self._client.label, opening.relation, seconds))

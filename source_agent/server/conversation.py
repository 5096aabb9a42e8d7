"""One Exchange stream: receive its requests and send the replies of its comparisons.

A worker thread owns the database session, runs one `Comparison` after the other and puts replies
into a bounded outbox, so that a slow client slows the scan instead of filling memory. The thread of
the RPC takes them out, in pieces if they are large, and sends `Progress` when none came for a while
within a relation, so heartbeats do not depend on the database, nor on the client: it may be sending
a large request over a slow line.

Invariants: the session is opened and closed by the worker. It is closed when the stream ends, when
the client sends or takes nothing for `idle_timeout_s` (sooner before its first `Open`), and after
an error that leaves it unusable. A relation's place for its scan is given up if another client
waits for one and the agent has waited too long for this client (`budgets.places`). A relation that
this client may not have costs no SQL. A refusal ends a relation, not the stream: requests already
sent for it are skipped.

Rejected: heartbeats from inside the scan; during one slow statement the warehouse would give up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from driftline import wire_pb2 as pb
from driftline.errors import (
    OPEN,
    DatabaseUnavailable,
    DriftlineError,
    InternalError,
    LimitExceeded,
    MalformedMessage,
    NotNow,
    RecipeChanged,
    SnapshotLost,
)
from driftline.limits import (
    LINE_HELD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    OPEN_S,
    PIECE_BYTES_MIN,
    PIECE_S_MAX,
)
from driftline.peer_text import one_line
from driftline.relations.derivations import DerivablePart, Derivation, relations_in
from driftline.wire import pieces

from source_agent.budgets.allowance import check_by_key, check_scan
from source_agent.budgets.audit import NAME_CHARACTERS_MAX, AuditEntry
from source_agent.budgets.budget import ExchangeStopped, GovernedSession
from source_agent.budgets.places import Place
from source_agent.config.file import ServedRelation
from source_agent.engines.relations.shapes import Shape
from source_agent.failpoints import SourceFailpoint
from source_agent.methods.comparison import Comparison
from source_agent.methods.request_validation import check_release, out_of_place
from source_agent.scan.reader import ReadCounts
from source_agent.server.catalogue import (
    AgentState,
    Client,
    derivation_of,
    describe,
    described,
)
from source_agent.server.handlers import known, refusal
from source_agent.server.stream_ends import ClientWaits, ReplyQueue, RequestStream

WANTED_LOOK_S = 1.0  # the longest time until a wait notices that its scan place is wanted
HELD_NEWS_S = 0.1  # of reading held back, of which a warehouse is told at once

# After these errors the session may not be usable for another relation.
_BREAKS_SESSION = (DatabaseUnavailable, SnapshotLost, InternalError)

_log = logging.getLogger("driftline.source")


class Conversation:
    """One Exchange stream."""

    def __init__(
        self,
        state: AgentState,
        client: Client,
        requests: Iterator[pb.Request],
        *,
        cancel: Callable[[], object] = lambda: None,
        ended: Callable[[Conversation], None] = lambda _: None,
        neighbour: int | None = None,
        joins_pieces: bool = False,
    ) -> None:
        """cancel: ends the RPC; ended: called when the session is closed and nothing is left;
        neighbour: the process of a client that runs on this machine, None if it does not;
        joins_pieces: large replies may be sent in pieces."""
        self._state, self._client, self._cancel, self._ended = state, client, cancel, ended
        self._neighbour = neighbour
        self._piece_size = PieceSize(time.monotonic()) if joins_pieces else None
        self._stopping = threading.Event()
        self._waits = ClientWaits()
        self._requests = RequestStream(requests, self._stopping, self._waits)
        self._outbox = ReplyQueue()
        self._lock = threading.Lock()  # held to replace or interrupt the session
        self._session: GovernedSession | None = None
        self._interrupted = False
        self._opened_at = 0.0
        self._sending_since: float | None = None  # since when gRPC sends one message
        self._sent_at = 0.0  # when it had sent the newest, of those that it would not repeat
        self._tally = ReadCounts()
        self._shape: Shape | None = None  # of the relation that is answered
        self._derive: frozenset[DerivablePart] = frozenset()  # what may be chosen of it
        self._following: tuple[str, ...] = ()  # relations that were announced for this stream
        self._joined: tuple[str, ...] = ()  # relations whose rows choose those of the one compared
        self._idle_s = state.config.database.limits.idle_s
        self._sharded = ("", b"", b"")  # the newest comparison: relation, fragment key and salt
        self._read_by_key = 0  # rows that its parts had
        self._place = ExitStack()  # of the session
        self._slot: Place | None = None  # for the scan of a relation
        self._waited_before_s = 0.0  # for the client, before it had that place
        self._is_accepted = False  # an Open named a relation that this client may have
        self._ended_as = "cancelled"  # audited outcome of what is stopped from outside
        self._worker: threading.Thread | None = None

    def start(self) -> None:
        """Start the work."""
        # Made here: a thread that is never started keeps what it would run.
        self._worker = threading.Thread(target=self._work, name="exchange", daemon=True)
        self._worker.start()

    def join(self, timeout_s: float) -> None:
        """Wait until the work has ended."""
        if self._worker is not None:
            self._worker.join(timeout_s)

    def replies(self) -> Iterator[pb.Reply]:
        """Start the work; yield its replies, and `Progress` while none is ready.

        Before rows it says for how long reading was held back, if that is news: the line was idle.
        """
        self.start()
        said_s, beside = 0.0, ExitStack()
        try:
            beside.enter_context(self._state.governor.others.with_warehouse(self._neighbour))
            while True:
                reply = self._outbox.take(self._state.heartbeat_s)
                error = self._overdue() if reply is None else None
                if error is not None:
                    reply = pb.Reply(refused=refusal(error))
                elif reply is None and (self._slot or self._requests.waiting_since is None):
                    reply = self._progress()
                for one in self._with_news(reply, said_s):
                    said_s = one.progress.held_back_s if one.HasField("progress") else said_s
                    yield from self._sent(one)
                if error is not None:
                    return
        except ExchangeStopped:
            return
        finally:
            self._sending_since = None
            beside.close()
            self.stop()

    def _sent(self, reply: pb.Reply) -> Iterator[pb.Reply]:
        """Yield a reply, in pieces if they can be joined, and note how long each was sent."""
        size = self._piece_size
        for message in pieces.cut(reply, lambda: size.bytes_max) if size else (reply,):
            self._sending_since = began = time.monotonic()
            yield message
            self._sending_since, now = None, time.monotonic()
            if size:
                size.note(message.ByteSize(), now - began, now)
            if not message.HasField("progress"):
                self._sent_at = now

    def _progress(self) -> pb.Reply:
        at = self._tally
        return pb.Reply(
            progress=pb.Progress(
                phase=at.phase,
                rows=at.rows_read,
                rows_expected=at.rows_expected,
                held_back_s=at.held_back_s,
            )
        )

    def _with_news(self, reply: pb.Reply | None, said_s: float) -> Iterator[pb.Reply]:
        """Yield a reply, if there is one, and before rows for how long reading was held back.

        said_s: seconds that were said before, maybe of another relation.
        """
        if reply is None:
            return
        if reply.HasField("rows") and abs(self._tally.held_back_s - said_s) >= HELD_NEWS_S:
            yield self._progress()
        yield reply

    def look(self) -> None:
        """Cancel the RPC if it has been sending one reply for too long; called by the watchdog."""
        since = self._sending_since
        held_s = 0.0 if since is None else time.monotonic() - since
        if held_s < min(self._state.heartbeat_s, self._idle_s):
            return  # a refusal that is being sent is not cut off
        if held_s >= self._idle_s or self._overdue(probes=False):
            self._sending_since = None  # cancel once
            self._cut(held_s)

    def _cut(self, silent_s: float) -> None:
        label = one_line(self._client.label, NAME_CHARACTERS_MAX)
        _log.warning("%s took no reply for %g s", label, silent_s)
        self._stopping.set()  # before the worker sees that the requests have ended
        self._cancel()

    def stop(self) -> None:
        """End the work soon, from any thread: the client left, or the agent stops.

        Never wait here: the caller is gRPC's own thread, and interrupting a dead database is slow.
        """
        self._stopping.set()
        self._outbox.close()
        threading.Thread(target=self._interrupt, name="interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        with self._lock:  # the session must not be closed meanwhile
            if self._session is not None and not self._interrupted:
                self._interrupted = True
                self._session.interrupt()

    def _work(self) -> None:
        refused = False
        try:
            for request in self._requests:
                if request.WhichOneof("message") == "open":
                    refused = self._answer(request)
                elif not refused:
                    self._deliver(pb.Reply(refused=refusal(out_of_place(request))))
                    break
        except ExchangeStopped:
            pass
        except MalformedMessage as error:  # bytes that are no request
            with suppress(ExchangeStopped):
                self._deliver(pb.Reply(refused=refusal(error)))
        except Exception:
            _log.exception("an exchange ended by an internal error")
        finally:
            self._close_session()
            self._place.close()
            self._outbox.close()
            self._ended(self)

    def _answer(self, request: pb.Request) -> bool:
        """Answer one `Open`; return True if it was refused."""
        opening, started = request.open, time.monotonic()
        entry = AuditEntry(self._client.label, opening.relation)
        self._tally, self._shape = ReadCounts(phase="wait"), None
        error: DriftlineError | None = None
        try:
            check_release(request)
            self._compare(opening, entry)
        except ExchangeStopped:
            entry.outcome = self._ended_as
            raise
        except Exception as problem:
            if self._stopping.is_set():
                entry.outcome = self._ended_as
                raise ExchangeStopped from None
            error = known(problem)
            entry.outcome = error.code
        finally:
            entry.rows_read, entry.scans = self._tally.rows_read, self._tally.scans
            entry.held_back_s = self._tally.held_back_s
            if self._session is not None:
                entry.snapshot_s = time.monotonic() - self._opened_at
            entry.seconds = time.monotonic() - started
            self._state.audit.write(entry)
        if isinstance(error, _BREAKS_SESSION):
            self._close_session()
        else:
            self._pause_session()  # the next request may come late; no writer shall wait for it
        if error is None:
            return False
        self._deliver(pb.Reply(refused=self._refusal(error, opening.relation)))
        return True

    def _refusal(self, error: DriftlineError, relation: str) -> pb.Refused:
        """Return the refusal of an `Open`; it describes the relation if its recipe changed."""
        if isinstance(error, RecipeChanged) and self._shape is not None:
            described = describe(self._shape, self._state.config.budget, self._derive)
            return refusal(error, relation, described)
        return refusal(error, relation)

    def _compare(self, opening: pb.Open, entry: AuditEntry) -> None:
        served = self._state.served_relation(opening.relation, opening.protocol, self._client)
        self._is_accepted, self._derive = True, served.derive
        self._following = tuple(opening.following) or self._following
        derivation = derivation_of(opening, served, entry)
        rows = None if derivation is None else derivation.rows
        self._joined = () if rows is None else tuple(relations_in(rows))
        governor, label = self._state.governor, self._client.label
        governor.check()
        check_scan(opening, served, governor.wall())
        # Parts under one salt are the shards of one comparison, which is limited as a whole.
        if self._sharded != (shard := (opening.relation, opening.fragment_key, opening.salt)):
            self._sharded, self._read_by_key = shard, 0
        check_by_key(opening, served, self._read_by_key)
        SourceFailpoint.GRANTED.reach()
        if self._session is None:
            self._place.close()
            self._place.enter_context(governor.session(self._stopping, label))
        with governor.slot(self._stopping, label) as place, self._holding(place):
            session, self._shape = self._described(served, derivation)
            self._tally.phase = "scan"
            comparison = Comparison(
                session, self._shape, opening, self._tally, governor.pool, governor.memory
            )
            # Closed, so that an early end closes the scan, too.
            with closing(comparison.answer(self._requests)) as replies:
                for reply in replies:
                    self._check_age()
                    self._check_place()
                    self._deliver(reply)
                    entry.count(reply)
                    if opening.grouping.rows_max and reply.HasField("finished"):
                        self._read_by_key += reply.finished.count

    def _deliver(self, reply: pb.Reply) -> None:
        self._state.governor.wait_bytes(reply.ByteSize(), self._stopping)
        began = time.monotonic()
        with self._waits.waiting():
            while not self._outbox.put(reply, min(WANTED_LOOK_S, self._idle_s)):
                silent_s = time.monotonic() - max(began, self._sent_at)
                if silent_s >= self._idle_s:
                    self._cut(silent_s)
                    raise ExchangeStopped
                self._check_place()

    def _open_session(self, served: ServedRelation) -> GovernedSession:
        if self._session is None:
            if self._stopping.is_set():
                raise ExchangeStopped
            state, client = self._state, self._client
            named = state.named((served.relation.name, *self._joined, *self._following), client)
            session = GovernedSession(
                state.engine.open(state.probed(client), named),
                self._state.governor,
                self._stopping,
                self._check_age,
                self._state.config.database.limits,
                self._note_held,
            )
            self._opened_at = time.monotonic()
            SourceFailpoint.SNAPSHOT_OPENED.reach()
            with self._lock:
                self._session = session
            if self._stopping.is_set():  # since then: `stop` may have found no session
                raise ExchangeStopped
        return self._session

    def _described(
        self, served: ServedRelation, derivation: Derivation | None
    ) -> tuple[GovernedSession, Shape]:
        """Return session and shape; renew a session that died, or does not cover the relation."""
        was_open, published = self._session is not None, self._state.published(self._client)
        session = self._open_session(served)
        try:
            return session, described(session, served, derivation, published)
        except (DatabaseUnavailable, SnapshotLost):
            if not was_open:
                raise
        self._close_session()
        session = self._open_session(served)
        return session, described(session, served, derivation, published)

    def _close_session(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            SourceFailpoint.SESSION_CLOSING.reach()
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

    def _note_held(self, seconds: float) -> None:
        self._tally.held_back_s += seconds

    def _check_age(self) -> None:
        longest = self._state.config.budget.snapshot_s
        if longest is not None and time.monotonic() - self._opened_at > longest:
            raise SnapshotLost(
                f"The source's DBA limits a snapshot to {longest:g} s (limits.snapshot_seconds).",
                abroad=OPEN,
            )

    def _overdue(self, *, probes: bool = True) -> DriftlineError | None:
        """Return the error that ends the stream: the client, the database or the budget is overdue.

        Without `probes` it does not ask the database, and does not block.
        """
        since = self._requests.waiting_since
        # Nothing can be expected of a client to which a reply is still on its way.
        silent_s = 0.0 if since is None else time.monotonic() - max(since, self._sent_at)
        if silent_s > OPEN_S and not self._is_accepted:
            entry = AuditEntry(self._client.label, "", LimitExceeded.code, seconds=silent_s)
            self._state.audit.write(entry)
            return LimitExceeded(
                f"The warehouse named no relation within {OPEN_S:g} s.",
                remedy="Run the refresh again.",
            )
        if since is not None and (wanted := self._wanted()):
            self._ended_as = wanted.code
            return wanted
        if silent_s > self._idle_s:
            return LimitExceeded(
                f"The warehouse sent nothing for {self._idle_s:g} s (database.idle_timeout_s).",
                remedy="Run the refresh again; nothing was published and what arrived is kept.",
            )
        try:
            session = self._session
            if since is None or session is not None:  # its snapshot is held meanwhile
                self._state.governor.check()
            if session is not None:
                self._check_age()
                if probes and (error := session.watch.dead()):
                    raise error
        except (NotNow, SnapshotLost, DatabaseUnavailable) as error:
            self._ended_as = error.code
            return known(error)
        return None

    def _wanted(self) -> NotNow | None:
        """Return the error that ends the relation: its client is slow, and another one waits."""
        place = self._slot
        waited_s = self._waits.seconds - self._waited_before_s
        if place is None or not place.is_wanted(waited_s):
            return None
        return NotNow(
            f"The source waited {waited_s:.0f} s for the warehouse, and another client waits for "
            "this scan place (limits.scans_at_once).",
            remedy="Run the refresh again; nothing was published and what arrived is kept.",
        )

    def _check_place(self) -> None:
        if wanted := self._wanted():
            raise wanted

    @contextmanager
    def _holding(self, place: Place) -> Iterator[None]:
        self._waited_before_s = self._waits.seconds
        self._slot = place
        try:
            yield
        finally:
            self._slot = None


WINDOW_S = 20.0  # after which earlier pieces no longer count


class PieceSize:
    """The size of the next piece of a stream.

    A warehouse gives up a line on which no message ends for NO_PROGRESS_S, so on a slow line
    pieces must be small; on a fast one each costs the threads of both sides a turn. They begin
    small, and grow while the line is known to carry the next one in PIECE_S_MAX. No I/O.

    How long a piece took to be sent says little: gRPC, the relay and the system take a megabyte at
    once and hold it ahead of the line. What was sent in a while, less LINE_HELD_BYTES_MAX, has
    left them, so it is a lower bound of what the line carried. A source that has little to send
    proves as little, and stays with small pieces.

    Rejected: the rate that TCP reports. A tunnel or a proxy hides the line from it.
    """

    def __init__(self, now: float) -> None:
        self.bytes_max = PIECE_BYTES_MIN
        self._since, self._bytes = now, 0

    def note(self, size: int, took_s: float, now: float) -> None:
        """Note that a message of `size` bytes was handed over at `now`, seconds of a monotonic
        clock, after it had to wait for `took_s`."""
        self._bytes += size
        elapsed_s = max(now - self._since, 1e-3)
        carried = max(self._bytes - LINE_HELD_BYTES_MAX, 0)
        known = max(int(carried / elapsed_s * PIECE_S_MAX), PIECE_BYTES_MIN)
        is_over = elapsed_s >= WINDOW_S
        if took_s > PIECE_S_MAX and self.bytes_max > PIECE_BYTES_MIN:
            self.bytes_max = max(self.bytes_max // 2, PIECE_BYTES_MIN)
            is_over = True
        elif known > self.bytes_max:
            self.bytes_max = min(known, 2 * self.bytes_max, MESSAGE_BYTES_MAX)
        elif is_over:
            self.bytes_max = known
        if is_over:
            self._since, self._bytes = now, 0

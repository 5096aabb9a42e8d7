"""The gRPC service: the three calls, health, and the life of the process.

The agent listens with mutual TLS, or in plain text on loopback; without a certificate of the DBA's
authority nobody reaches a handler. `conversation` answers an exchange; `transport` accepts calls.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar, cast

import grpc
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc
from driftline.errors import OPEN, DatabaseUnavailable, DriftlineError, LimitExceeded, NotNow
from driftline.limits import (
    ACTIVITY_RELATIONS_MAX,
    CONTROL_S,
    DESCRIBE_RPCS_MAX,
    DESCRIBE_RPCS_PER_CLIENT_MAX,
    DESCRIBE_RPCS_READING_MAX,
    EXCHANGE_RPCS_MAX,
    EXCHANGE_RPCS_PER_CLIENT_MAX,
    HEARTBEAT_S,
    REFERENCES_MAX,
)
from driftline.metrics_server import MetricsServer
from driftline.relations.activity import Activity
from driftline.relations.activity_messages import to_message
from driftline.wire.negotiation import FEATURES, PROTOCOLS, check_fields, check_protocol
from grpc_health.v1 import health, health_pb2

from source_agent.budgets.allowance import allowance
from source_agent.budgets.audit import AuditEntry, AuditLog
from source_agent.budgets.budget import ExchangeStopped, Governor
from source_agent.budgets.places import fixed_places
from source_agent.config.file import ServedRelation, SourceConfig
from source_agent.config.site_joins import site_joins
from source_agent.engines.interface import Engine, Session
from source_agent.engines.registry import connect_anew, is_beside
from source_agent.engines.relations.shapes import Relation
from source_agent.failpoints import SourceFailpoint
from source_agent.scan.heap import keep_heap_small
from source_agent.server.catalogue import (
    AgentState,
    Client,
    derivation_of,
    describe,
    described,
    referenced,
)
from source_agent.server.conversation import Conversation
from source_agent.server.handlers import (
    SERVICES,
    abort,
    add_handlers,
    joins_pieces,
    known,
    neighbour,
    one_message,
)
from source_agent.server.metrics import AuditCounters
from source_agent.server.transport import Transport

STOP_GRACE_S = 30.0
WATCH_S = 0.5  # between two looks at every conversation
DESCRIBE_WAIT_S = 2.0  # for another description to end, part of the caller's CONTROL_S

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply", pb.DescribeReply, pb.ActivityReply)
_log = logging.getLogger("driftline.source")


class Servicer(wire_pb2_grpc.SourceServicer):
    """The three calls of wire.proto."""

    def __init__(self, state: AgentState) -> None:
        self.state = state
        # Called when a call of a client arrives; `start` connects it to the transport.
        self.arrived: Callable[[grpc.ServicerContext, str], None] = lambda *_: None
        self._exchanges = fixed_places("exchanges", EXCHANGE_RPCS_MAX, EXCHANGE_RPCS_PER_CLIENT_MAX)
        self._describes = fixed_places("calls", DESCRIBE_RPCS_MAX, DESCRIBE_RPCS_PER_CLIENT_MAX)
        self._readings = fixed_places("descriptions", DESCRIBE_RPCS_READING_MAX, 1)
        self._lock = threading.Lock()
        self._conversations: set[Conversation] = set()
        self._is_over = threading.Event()

    @property
    def calls(self) -> int:
        """Return the number of calls that are answered now."""
        return self._exchanges.held + self._describes.held

    def start(self) -> None:
        """Start the watchdog: gRPC blocks the thread of an RPC while its client takes nothing."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def Describe(
        self, requests: Iterator[pb.DescribeRequest], context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        return self._answered(requests, context, self._describe, pb.DescribeReply, "described")

    def Activity(
        self, requests: Iterator[pb.ActivityRequest], context: grpc.ServicerContext
    ) -> pb.ActivityReply:
        return self._answered(requests, context, self._activity, pb.ActivityReply, "probed")

    def _answered(
        self,
        requests: Iterator[_Request],
        context: grpc.ServicerContext,
        answer: Callable[[_Request, Client, grpc.ServicerContext, AuditEntry], _Reply],
        reply_of: Callable[[], _Reply],
        outcome: str,
    ) -> _Reply:
        """Answer a call with one request, within the places for such calls, and audit it."""
        client, began = self._client(context), time.monotonic()
        entry = AuditEntry(client.label, "")
        try:
            with self._describes.taken(client.label):
                reply = answer(one_message(requests, context), client, context, entry)
            entry.outcome, entry.bytes_out = outcome, reply.ByteSize()
            return reply
        except ExchangeStopped:  # the client left before its request: nobody gets this reply
            return reply_of()
        except Exception as problem:
            error = known(problem)
            entry.outcome = error.code
            abort(context, error, entry.relation)
        finally:
            entry.seconds = time.monotonic() - began
            self.state.audit.write(entry)

    def _describe(
        self,
        request: pb.DescribeRequest,
        client: Client,
        context: grpc.ServicerContext,
        entry: AuditEntry,
    ) -> pb.DescribeReply:
        state = self.state
        entry.relation = request.relation
        check_fields(request)
        reply = pb.DescribeReply(
            agent=f"driftline-source {agent_version()}",
            database=state.engine.name,
            protocols=PROTOCOLS,
            features=sorted(FEATURES),
        )
        if not request.relation:
            # For any protocol of the warehouse, which learns here which one to choose.
            for name, published in state.config.relations.items():
                if published.admits(client.names):
                    self._name(reply, name, published)
            return reply
        served = state.served_relation(request.relation, request.protocol, client)
        derivation = derivation_of(request, served, entry)
        if len(request.beside) > REFERENCES_MAX:
            raise LimitExceeded(f"A description names at most {REFERENCES_MAX} other relations.")
        state.governor.check()
        with (
            self._readings.taken(client.label, wait_s=DESCRIBE_WAIT_S),
            self._session(context, served.relation.name) as session,
        ):
            known = state.published(client)
            shape = described(session, served, derivation, known)
            references = referenced(session, shape, [one.relation for one in known.values()])
            joins = site_joins(session, served, shape, known, tuple(request.beside) or None)
        self._name(reply, request.relation, served)
        budget = state.config.budget
        reply.description.CopyFrom(describe(shape, budget, served.derive, references, joins))
        return reply

    def _name(self, reply: pb.DescribeReply, name: str, served: ServedRelation) -> None:
        """Add a relation to a reply, and what may be read of it now."""
        reply.relations.append(name)
        reply.allowances.append(allowance(served, self.state.governor.wall()))

    def _activity(
        self,
        request: pb.ActivityRequest,
        client: Client,
        context: grpc.ServicerContext,
        entry: AuditEntry,
    ) -> pb.ActivityReply:
        state, names = self.state, request.relations
        entry.relation = names[0] if len(names) == 1 else ""
        entry.relations = len(names)
        check_fields(request)
        check_protocol(request.protocol)
        if not 0 < len(names) <= ACTIVITY_RELATIONS_MAX:
            raise LimitExceeded(
                f"The warehouse asked for the activity of {len(names):,} relations; a call may name"
                f" 1 to {ACTIVITY_RELATIONS_MAX:,}."
            )
        asked = {*names}
        probed = [relation for relation in state.probed(client) if relation.name in asked]
        activities: Mapping[str, Activity] = {}
        if probed:
            state.governor.check()
            with self._readings.taken(client.label, wait_s=DESCRIBE_WAIT_S):
                state.governor.activity_turns.take(client.label)
                with self._session(context, "", probed) as session:
                    activities = session.capabilities.activities
        whole = [to_message(activities.get(name) or state.unprobed(name, client)) for name in names]
        return pb.ActivityReply(activities=whole)

    @contextlib.contextmanager
    def _session(
        self, context: grpc.ServicerContext, where: str, probed: Sequence[Relation] = ()
    ) -> Iterator[Session]:
        """Open a session for a call: it ends after CONTROL_S, and when the client leaves."""
        session = self.state.engine.open(probed)
        lock, is_over, is_late = threading.Lock(), False, False

        def give_up() -> None:
            nonlocal is_late
            with lock:
                if not is_over:
                    is_late = True
                    session.interrupt()

        timer = threading.Timer(CONTROL_S, give_up)
        timer.daemon = True
        timer.start()
        # In a thread, because gRPC's own thread calls back and interrupting may take seconds.
        context.add_callback(lambda: threading.Thread(target=give_up, daemon=True).start())
        try:
            yield session
        except DriftlineError:
            if is_late:
                raise DatabaseUnavailable(
                    f"The database did not answer in {CONTROL_S:g} s.",
                    where=where,
                    abroad=OPEN,
                ) from None
            raise
        finally:
            timer.cancel()
            with lock:
                is_over = True
            session.close()

    def Exchange(
        self, request_iterator: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        client = self._client(context)
        SourceFailpoint.AUTHENTICATED.reach()
        try:
            with self._exchanges.taken(client.label):
                yield from self._converse(client, request_iterator, context)
        except NotNow as error:  # only of `taken`: a conversation sends its errors as replies
            self.state.audit.write(AuditEntry(client.label, "", error.code))
            abort(context, error)

    def _converse(
        self, client: Client, requests: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        conversation = Conversation(
            self.state,
            client,
            requests,
            cancel=context.cancel,
            ended=self._forget,
            neighbour=neighbour(context),
            joins_pieces=joins_pieces(context),
        )
        # The callback ends the work when the client leaves, whatever the RPC waits for.
        if context.add_callback(conversation.stop):
            with self._lock:
                self._conversations.add(conversation)
            yield from conversation.replies()

    def _forget(self, conversation: Conversation) -> None:
        with self._lock:
            self._conversations.discard(conversation)

    def _watch(self) -> None:
        file = FileWatch(self.state.config.path)
        while not self._is_over.wait(WATCH_S):
            with self._lock:
                conversations = list(self._conversations)
            try:
                for conversation in conversations:
                    conversation.look()
                self.state.audit.write_left_out()
                if file.changed():
                    self.state.reload_limits()
            except Exception:
                _log.exception("the watchdog met an internal error and continues")

    def _client(self, context: grpc.ServicerContext) -> Client:
        client = client_of(context)
        self.arrived(context, client.label)
        return client

    def stop(self, timeout_s: float) -> None:
        """End the remaining conversations; wait `timeout_s` for each session to close."""
        with self._lock:
            left = list(self._conversations)
        for conversation in left:
            conversation.stop()
        for conversation in left:
            conversation.join(timeout_s)
        self.state.governor.pool.close()
        self.state.audit.write_left_out(at_once=True)
        self._is_over.set()


@dataclass(frozen=True, slots=True)
class Server:
    """A running agent; call `stop` to end it."""

    _transport: Transport
    _servicer: Servicer
    _vital: health.HealthServicer
    _metrics: MetricsServer | None = None

    @property
    def metrics_address(self) -> str | None:
        """Address of the page for Prometheus; None: there is none."""
        return None if self._metrics is None else self._metrics.address

    @property
    def port(self) -> int:
        """TCP port that it listens on."""
        return self._transport.port

    def reload(self) -> None:
        """Read the DBA's file again. An error in it does not end the agent."""
        try:
            self._servicer.state.reload()
        except Exception:
            _log.exception("the file was not read again because of an internal error")

    def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, give running ones `grace_s` seconds, then close every session."""
        self._vital.enter_graceful_shutdown()
        self._transport.stop(grace_s)
        self._servicer.stop(timeout_s=5.0)
        if self._metrics is not None:
            self._metrics.stop()


def start(
    config: SourceConfig,
    *,
    engine: Engine | None = None,
    governor: Governor | None = None,
    heartbeat_s: float = HEARTBEAT_S,
) -> Server:
    """Listen and answer until `stop`. Raises ConfigurationError for address and certificates."""
    if engine is None:
        database = config.database
        given = database.url, database.password_now, database.limits
        engine = connect_anew(*given, pooler=database.pooler)
    if governor is None:
        governor = Governor(config.budget, is_beside=is_beside(config.database.url))
    counters = AuditCounters()
    audit = AuditLog(config.server.audit_file, told=counters.count)
    state = AgentState(config, engine, governor, audit, heartbeat_s)
    servicer = Servicer(state)
    vital = health.HealthServicer(experimental_non_blocking=False)
    for name in SERVICES:
        vital.set(name, health_pb2.HealthCheckResponse.SERVING)

    def add(server: grpc.Server) -> None:
        add_handlers(server, servicer, vital, lambda context: client_of(context).label)

    transport = Transport(config.server, config.path.name, add)
    servicer.arrived = transport.establish
    metrics = None
    if config.metrics is not None:
        metrics = MetricsServer(
            *config.metrics,
            lambda: counters.page(
                state.config.relations, is_paused=state.governor.is_paused, calls=servicer.calls
            ),
        )
    transport.start()
    servicer.start()
    return Server(transport, servicer, vital, metrics)


def run(load: Callable[[], SourceConfig], *, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; then give running exchanges STOP_GRACE_S seconds.

    SIGHUP reads the file again. port_file: gets the port once the agent listens.
    """
    keep_heap_small()
    asked, asks = socket.socketpair()
    asks.setblocking(False)
    # A signal writes a byte, whichever thread gets it. A lock would not do: the next signal may
    # interrupt a handler, and a signal in another thread does not wake this one.
    signal.set_wakeup_fd(asks.fileno(), warn_on_full_buffer=False)
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        config = load()
        server = start(config)
        if port_file is not None:
            beside = port_file.with_name(port_file.name + ".part")
            beside.write_text(f"{server.port}\n")
            beside.replace(port_file)
        host = config.server.address.rpartition(":")[0]
        print(f"listening on {host}:{server.port}", file=sys.stderr, flush=True)
        if server.metrics_address is not None:
            print(f"metrics on {server.metrics_address}", file=sys.stderr, flush=True)
        _tell_supervisor("READY=1")
        # The bytes do not say which signals came: the buffer may be too small for all of them.
        while asked.recv(4096) and not is_over:
            server.reload()
        server.stop(STOP_GRACE_S)
    finally:
        signal.set_wakeup_fd(-1)


def _tell_supervisor(state: str) -> None:
    """Send a state to the supervisor that asked for it in NOTIFY_SOCKET (systemd: sd_notify(3))."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        path = f"\0{address[1:]}" if address.startswith("@") else address  # an abstract socket
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor,
        ):
            supervisor.sendto(state.encode(), path)


@functools.cache
def agent_version() -> str:
    """Return the version of the installed package, or `unknown` in a bare source tree."""
    try:
        return version("driftline")
    except PackageNotFoundError:
        return "unknown"


def client_of(context: grpc.ServicerContext) -> Client:
    """Return the client of a call, by the certificate that TLS has verified.

    Its names are its URIs and DNS names. Authorities do not verify the common name: only a label.
    """
    # The stubs say Mapping[str, Iterable[int]]; the values are lists of bytes.
    properties = cast(Mapping[str, Iterable[bytes]], context.auth_context())

    def values(field: str) -> list[str]:
        # Skip names that are not UTF-8: with characters replaced, one could equal another name.
        decoded = []
        for value in properties.get(field, ()):
            with contextlib.suppress(UnicodeDecodeError):
                decoded.append(value.decode())
        return decoded

    names = values("peer_uri") + values("peer_dns")
    labels = names or [f"CN={name}" for name in values("x509_common_name")]
    return Client((labels or ["loopback"])[0], frozenset(names))


SETTLE_S = 2.0


class FileWatch:
    """Tells once of every change of one file. For one thread.

    An editor may write a file in several steps, and half of a file may be valid without its
    limits. So a change counts once the file has stayed the same for SETTLE_S. The watchdog asks
    twice a second, which costs one `stat`; the clock is injected. What is read again then,
    `catalogue` decides.

    Rejected: inotify. It is one more dependency, and sees nothing on a network file system.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._known = self._seen = self._signature()
        self._since = clock()

    def changed(self) -> bool:
        """Return True if the file differs from the one that was told of last, and has settled."""
        now, signature = self._clock(), self._signature()
        if signature != self._seen:
            self._seen, self._since = signature, now
        if self._seen == self._known or now - self._since < SETTLE_S:
            return False
        self._known = self._seen
        return True

    def _signature(self) -> tuple[int, ...]:
        """Return what a write or a replacement of the file changes; empty: it cannot be seen."""
        try:
            stat = self._path.stat()
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino

"""The gRPC server: who may connect, how much, and when it ends.

It listens with mutual TLS, or in plain text on loopback; nobody without a certificate of the DBA's
authority reaches a handler. Certificates are read again when their files change. What is asked is
answered in `answer`; here are only transport, the `Describe` call, health and the process.

A connection older than an hour is asked to
come again, so that a revoked or renewed certificate counts; a stream that is running is not cut.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, cast

import grpc
from driftline import wire_pb2 as pb
from driftline import wire_pb2_grpc
from driftline.errors import GRPC_STATUS, ConfigurationError, DriftlineError
from driftline.limits import (
    HEARTBEAT_S,
    RECEIVE_BYTES_MAX_SOURCE,
    RECEIVE_BYTES_MAX_WAREHOUSE,
    RPCS_MAX,
)
from driftline.negotiation import FEATURES, PROTOCOLS, check_fields
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from source_agent.answer import Conversation
from source_agent.audit import Audit
from source_agent.certificates import Watched
from source_agent.configure import SourceConfig
from source_agent.engine import Engine
from source_agent.engines import connect
from source_agent.govern import Governor
from source_agent.heap import keep_heap_small
from source_agent.publish import Client, Source, describe
from source_agent.refuse import known, refusal

STOP_GRACE_S = 30.0
# Trailing metadata of a Describe that failed: code and remedy as ASCII, and the whole Refused.
CODE_METADATA, REMEDY_METADATA = "driftline-code", "driftline-remedy"
REFUSED_METADATA = "driftline-refused-bin"

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second agent shares the port silently
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.keepalive_time_ms", 20_000),  # a warehouse that vanished gives its snapshot back
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX_SOURCE),
    ("grpc.max_send_message_length", RECEIVE_BYTES_MAX_WAREHOUSE),
)
_log = logging.getLogger("driftline.source")


class Servicer(wire_pb2_grpc.SourceServicer):
    """The two calls of wire.proto."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._conversations: set[Conversation] = set()

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        try:
            return self._describe(request, client_of(context))
        except Exception as problem:
            _abort(context, known(problem))

    def _describe(self, request: pb.DescribeRequest, client: Client) -> pb.DescribeReply:
        source = self._source
        check_fields(request)
        reply = pb.DescribeReply(
            agent=f"driftline-source {agent_version()}",
            database=source.engine.name,
            protocols=PROTOCOLS,
            features=sorted(FEATURES),
        )
        if not request.relation:
            # Whatever protocol the warehouse speaks: this is how it learns which to choose.
            relations = source.config.relations.items()
            reply.relations.extend(n for n, p in relations if p.admits(client.names))
            return reply
        published = source.publication(request.relation, request.protocol, client)
        source.governor.check()
        session = source.engine.open()
        try:
            described = describe(session.describe(published.relation), source.config.budget)
        finally:
            session.close()
        reply.relations.append(request.relation)
        reply.description.CopyFrom(described)
        return reply

    def Exchange(
        self, request_iterator: Iterator[pb.Request], context: grpc.ServicerContext
    ) -> Iterator[pb.Reply]:
        conversation = Conversation(
            self._source, client_of(context), request_iterator, cancel=context.cancel
        )
        with self._lock:
            self._conversations = {c for c in self._conversations if c.worker.is_alive()}
            self._conversations.add(conversation)
        # The callback ends the work at once when the client goes, whatever the RPC waits for.
        if context.add_callback(conversation.stop):
            yield from conversation.replies()

    def stop(self, timeout_s: float) -> None:
        """Ends what is left of the conversations and waits for their sessions to close."""
        with self._lock:
            left = [c for c in self._conversations if c.worker.is_alive()]
        for conversation in left:
            conversation.stop()
        for conversation in left:
            conversation.worker.join(timeout_s)
        self._source.governor.crew.close()


class Server:
    """A running agent. Stop it."""

    def __init__(
        self,
        server: grpc.Server,
        servicer: Servicer,
        vital: health.HealthServicer,
        pools: tuple[ThreadPoolExecutor, ...],
        port: int,
    ) -> None:
        self.port = port
        self._server, self._servicer, self._vital = server, servicer, vital
        self._pools = pools

    def stop(self, grace_s: float = 0.0) -> None:
        """No new calls; running ones get `grace_s` seconds; then every session is closed."""
        self._vital.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()
        self._servicer.stop(timeout_s=5.0)
        for pool in self._pools:
            pool.shutdown(wait=False)


def start(
    config: SourceConfig,
    *,
    engine: Engine | None = None,
    governor: Governor | None = None,
    heartbeat_s: float = HEARTBEAT_S,
) -> Server:
    """Listen and answer until `stop`. The database is not contacted before it is asked for.

    Raises:
        ConfigurationError: the address is taken, or the certificates are not usable.
    """
    if engine is None:
        engine = connect(config.database.url, config.database.password, config.database.limits)
    source = Source(
        config,
        engine,
        governor or Governor(config.budget),
        Audit(config.server.audit_file),
        heartbeat_s,
    )
    rpcs, probes = ThreadPoolExecutor(RPCS_MAX, "rpc"), ThreadPoolExecutor(1, "health")
    server = grpc.server(rpcs, options=_OPTIONS, maximum_concurrent_rpcs=RPCS_MAX)
    servicer = Servicer(source)
    wire_pb2_grpc.add_SourceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    vital = health.HealthServicer(experimental_non_blocking=True, experimental_thread_pool=probes)
    health_pb2_grpc.add_HealthServicer_to_server(vital, server)
    for name in ("", "driftline.Source"):
        vital.set(name, health_pb2.HealthCheckResponse.SERVING)
    port = _bind(server, config)
    server.start()
    return Server(server, servicer, vital, (rpcs, probes), port)


def run(config: SourceConfig, *, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; then let running exchanges end for STOP_GRACE_S seconds."""
    keep_heap_small()
    asked, asks = socket.socketpair()
    asks.setblocking(False)
    # A byte for each signal, whichever thread gets it. A lock would not do: a handler may be
    # interrupted by the next one, and what interrupts another thread does not wake this one.
    signal.set_wakeup_fd(asks.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server = start(config)
        if port_file is not None:
            beside = port_file.with_name(port_file.name + ".part")
            beside.write_text(f"{server.port}\n")
            beside.replace(port_file)
        host = config.server.address.rpartition(":")[0]
        print(f"listening on {host}:{server.port}", file=sys.stderr, flush=True)
        asked.recv(1)
        server.stop(STOP_GRACE_S)
    finally:
        signal.set_wakeup_fd(-1)


def agent_version() -> str:
    """Of the installed package; in a source tree that is not installed, `unknown`."""
    try:
        return version("driftline")
    except PackageNotFoundError:
        return "unknown"


def client_of(context: grpc.ServicerContext) -> Client:
    """Who is at the other end, by the certificate that TLS has verified."""
    # The stubs say Mapping[str, Iterable[int]]; they are lists of bytes.
    properties = cast(Mapping[str, Iterable[bytes]], context.auth_context())
    found: list[str] = []
    for field in ("x509_subject_alternative_name", "x509_common_name"):
        found += [value.decode(errors="replace") for value in properties.get(field, ())]
    uris = [name for name in found if "://" in name]
    return Client((uris or found or ["loopback"])[0], frozenset(found))


def _abort(context: grpc.ServicerContext, error: DriftlineError) -> NoReturn:
    """End a call outside an exchange: a gRPC status, and the whole error in trailing metadata."""
    kinds = (k for k in type(error).__mro__ if k in GRPC_STATUS)
    status = getattr(grpc.StatusCode, GRPC_STATUS.get(next(kinds, type(error)), "INTERNAL"))
    context.set_trailing_metadata(
        (
            (CODE_METADATA, error.code),
            (REMEDY_METADATA, error.remedy.encode("ascii", "replace").decode()),
            (REFUSED_METADATA, refusal(error).SerializeToString()),
        )
    )
    context.abort(status, error.message)
    raise AssertionError("abort raises")


def _bind(server: grpc.Server, config: SourceConfig) -> int:
    endpoint = config.server
    place = f"{config.path.name}: server.listen"
    try:
        if endpoint.certificates is None:
            return server.add_insecure_port(endpoint.address)
        credentials = Watched(endpoint.certificates, config.path.name).credentials()
        return server.add_secure_port(endpoint.address, credentials)
    except RuntimeError:
        raise ConfigurationError(
            f"It is not possible to listen on {endpoint.address}.",
            where=place,
            remedy="Is another agent running, or is the address not of this machine?",
        ) from None

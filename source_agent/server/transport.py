"""Pass calls to the agent: an acceptor in front, gRPC servers behind it.

A gRPC server keeps the certificates that it was made with. When those on disk change, a new server
gets all further connections. The old one takes no new calls once the handshakes that it had begun
are over, asks its clients to reconnect, and lets running streams end. The listening socket stays
open meanwhile. A connection older than an hour is asked to reconnect as well.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from driftline.errors import ConfigurationError
from driftline.limits import (
    CONNECTION_RPCS_MAX,
    RECEIVE_BYTES_MAX_SOURCE,
    RECEIVE_BYTES_MAX_WAREHOUSE,
    RPCS_MAX,
)

from source_agent.config.file import Endpoint
from source_agent.server.acceptor import Acceptor
from source_agent.server.certificates import WatchedCertificates

HANDSHAKE_S = 5.0
RETIRES_AFTER_S = HANDSHAKE_S + 1.0  # by then the handshakes of the old server are over
RETIRED_S = 86_400.0  # for streams of a server whose certificates were replaced

_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 2),
    # Frees the snapshot of a warehouse that vanished, whose system does not acknowledge the ping:
    # the acceptor notices.
    ("grpc.keepalive_time_ms", 20_000),
    # An answer may wait behind all that is on its way to a slow line: 1 MB at 256 kbit/s, by two.
    ("grpc.keepalive_timeout_ms", 75_000),
    ("grpc.http2.ping_timeout_ms", 75_000),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_concurrent_streams", CONNECTION_RPCS_MAX),
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX_SOURCE),
    ("grpc.max_send_message_length", RECEIVE_BYTES_MAX_WAREHOUSE),
)
_log = logging.getLogger("driftline.source")


class Transport:
    """Listens at an endpoint and passes calls to the handlers; call `stop` to end it."""

    def __init__(
        self, endpoint: Endpoint, config_name: str, add_handlers: Callable[[grpc.Server], None]
    ) -> None:
        """Listen. Raises ConfigurationError: the address is taken, or certificates not usable."""
        self._add_handlers = add_handlers
        self._watched: WatchedCertificates | None = None
        if endpoint.certificates is not None:
            self._watched = WatchedCertificates(endpoint.certificates, config_name)
        self._calls = ThreadPoolExecutor(RPCS_MAX, "rpc")
        self._lock = threading.Lock()
        self._is_stopped = False
        self._prefix, self._numbers = f"driftline-{secrets.token_hex(8)}", itertools.count()
        self._retired: list[grpc.Server] = []
        try:
            is_tls = self._watched is not None
            host, port = endpoint.host, endpoint.port
            self._acceptor = Acceptor(host, port, is_tls=is_tls, backend=self._backend)
        except OSError as error:
            raise ConfigurationError(
                f"It is not possible to listen on {endpoint.address}: {error.strerror}.",
                where=f"{config_name}: server.listen",
                remedy="Is another agent running, or is it an address of another machine?",
            ) from None
        self.port = self._acceptor.port
        self._server, self._name = self._serve()

    def start(self) -> None:
        """Accept connections."""
        self._acceptor.start()

    def establish(self, context: grpc.ServicerContext, client: str) -> None:
        """Count the connection of this call, which proves its client, as established."""
        self._acceptor.establish(context.peer(), client)

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s` seconds, then close everything."""
        self._acceptor.stop_listening()
        with self._lock:
            self._is_stopped = True
            servers = [self._server, *self._retired]
        for ended in [server.stop(grace_s) for server in servers]:
            ended.wait()
        self._acceptor.close()
        self._calls.shutdown(wait=False)

    def _backend(self) -> str:
        """Return the socket name for the next connection; called in the acceptor's thread."""
        if self._watched is not None and self._watched.changed():
            try:
                self._replace()
            except Exception:
                self._watched.undo()
                _log.exception("no server can be made with the new certificates; will try again")
        return self._name

    def _replace(self) -> None:
        with self._lock:
            if self._is_stopped:
                return
            before, (self._server, self._name) = self._server, self._serve()
            self._retired.append(before)
        # Stopped at once, it would break off handshakes that have begun.
        retiring = threading.Timer(RETIRES_AFTER_S, self._retire, [before])
        retiring.daemon = True
        retiring.start()

    def _retire(self, server: grpc.Server) -> None:
        server.stop(RETIRED_S).wait()
        with self._lock:
            self._retired.remove(server)

    def _serve(self) -> tuple[grpc.Server, str]:
        """Start a gRPC server; return it and the abstract name of its Unix socket."""
        # No `maximum_concurrent_rpcs`: it counts all clients and calls of health together, and
        # refuses without a reason. Connections, streams of each, and `Places` are bounded instead.
        server = grpc.server(self._calls, options=_OPTIONS)
        self._add_handlers(server)
        name = f"{self._prefix}-{next(self._numbers)}"
        address = f"unix-abstract:{name}"
        if self._watched is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, self._watched.credentials())
        server.start()
        return server, name

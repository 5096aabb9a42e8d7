"""Why a source cannot be reached, from a TCP connection and a TLS handshake made by hand.

gRPC reports a refused certificate, a wrong name, a closed port and a cut line alike, as a retryable
"Socket closed". Here the cause decides: a fault of a certificate or a setting is UNAUTHENTICATED
and not tried again; a fault of the line is UNREACHABLE and is. A gRPC server that refuses our
certificate ends the connection with FIN after a handshake that is complete for us (TLS 1.3), like a
line that was cut there: only a server that does so LOOKS times has refused the certificate.

gRPC takes an HTTP proxy from the environment; a connection made by hand does not, so it says
nothing about a source behind a proxy. The rules are gRPC's own (core 1.85, `http_proxy_mapper`).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from driftline.errors import DriftlineError, SourceUnreachable, Unauthenticated
from driftline.limits import CONTROL_S
from driftline.wire.same_machine import METADATA, claim
from driftline.x509 import read_der

from warehouse_agent.config import Source
from warehouse_agent.transport.certificates import certificates, context_of, validity

LOOKS = 3
_NAMES_SHOWN = 10  # of a certificate
_LEAST_S = 1e-3  # of a wait: 0 would mean that a socket never waits

_RECORD_BYTES = 1 << 14
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME
_WRONG_NAME = {62, 63, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, EMAIL, IP_ADDRESS
_WRONG_TIME = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, CERT_HAS_EXPIRED
# Alerts of a peer that understood us and refuses; other alerts mean that a byte was changed.
_REFUSALS = re.compile(
    "CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE|PROTOCOL_VERSION|INSUFFICIENT_SECURITY"
    "|NO_APPLICATION_PROTOCOL|UNRECOGNIZED_NAME"
)
_TLS_FIRST_BYTES = b"\x15\x16"  # an alert or a handshake record
# RFC 9113, section 3.4: the client's preface and an empty SETTINGS frame.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_PROXY = ("grpc_proxy", "https_proxy", "http_proxy")  # the first one that is set decides
_NO_PROXY = ("no_grpc_proxy", "no_proxy")  # ends of host names, and networks


class _NotTls(Exception):
    """The first bytes of a server that is not a TLS record."""


def host_and_port(source: Source) -> tuple[str, int]:
    """Return host and port of the source's address."""
    name, _, port = source.address.rpartition(":")
    return name.strip("[]"), int(port)


def proxy_between(source: Source) -> str | None:
    """Return HOST:PORT of the proxy through which gRPC reaches the source, or None."""
    return proxy_of(host_and_port(source)[0])


def proxy_of(host: str) -> str | None:
    """Return HOST:PORT of the proxy for a host without brackets; None if there is none.

    Credentials of the proxy are left out.
    """
    try:
        url = urlsplit(_first_set(_PROXY))
    except ValueError:
        return None
    proxy = url.netloc.rpartition("@")[2]
    if url.scheme != "http" or not proxy:
        return None
    entries = (entry.strip() for entry in _first_set(_NO_PROXY).split(",") if entry)
    return None if any(_includes(entry, host) for entry in entries) else proxy


def _first_set(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if name in os.environ), "")


def _includes(entry: str, host: str) -> bool:
    """Return True if an entry of `no_proxy` is the end of the host's name, or its network."""
    if host.lower().endswith(entry.lower()):
        return True
    if not entry.rpartition("/")[2].isdigit() or "/" not in entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def connect(source: Source, timeout_s: float | None = None) -> socket.socket:
    """Make a TCP connection to the source; each operation takes at most `timeout_s`, or CONTROL_S.

    Raises:
        OSError: it cannot be made, or the host is no valid name.
    """
    host, port = host_and_port(source)
    try:
        return socket.create_connection((host, port), timeout_s or CONTROL_S)
    except UnicodeError as error:  # of the codec of host names
        raise OSError(f"{host!r} is not a host name") from error


def diagnose(source: Source) -> DriftlineError | None:
    """Return why nothing answers; None if a connection can be made now, or if there is a proxy.

    Raises:
        ConfigurationError: our certificates cannot be used.
    """
    if proxy_between(source) is not None:
        return None
    try:
        return _plain_text(source) if source.insecure else _secured(source)
    except TimeoutError:
        return nothing_answers(source, "does not answer in time")
    except OSError as error:
        return nothing_answers(source, error.strerror or str(error))


def nothing_answers(source: Source, reason: str) -> SourceUnreachable:
    """Return the error of an address at which no connection is accepted."""
    return SourceUnreachable(
        f"Nothing answers at {source.address}: {reason}.",
        where=f"source {source.name}",
        remedy="Check the address, the firewall and that `driftline-source serve` runs.",
    )


def _server_name(source: Source) -> str:
    return source.server_name or host_and_port(source)[0]


def _secured(source: Source) -> DriftlineError | None:
    context = context_of(source)
    for _ in range(LOOKS):
        try:
            if _has_answered(source, context):
                return None
        except _NotTls:
            return _not_tls(source)
        except ConnectionError:
            with contextlib.suppress(OSError):
                if _answers_in_plain_text(source):
                    return _not_tls(source)
            raise
        except ssl.SSLCertVerificationError as error:
            return _distrusted(source, error)
        except ssl.SSLError as error:
            return _alerted(source, error)
    return _rejected(source)


def _has_answered(source: Source, context: ssl.SSLContext) -> bool:
    """Make a handshake; return False if the server then ended the connection without a byte.

    Raises:
        ConnectionError: the connection ended in the middle of the handshake, or with RST.
        TimeoutError: it has not ended after CONTROL_S, however many bytes came.
        ssl.SSLError: one side refused.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    line = context.wrap_bio(incoming, outgoing, server_hostname=_server_name(source))
    with connect(source) as plain:
        is_first, ends_at = True, time.monotonic() + CONTROL_S
        while True:
            try:
                line.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
            plain.settimeout(max(ends_at - time.monotonic(), _LEAST_S))
            data = plain.recv(_RECORD_BYTES)
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the TLS handshake was cut off")
            if is_first and data[0] not in _TLS_FIRST_BYTES:
                raise _NotTls
            is_first = False
            incoming.write(data)
        plain.sendall(outgoing.read())
        if line.version() != "TLSv1.3":
            return True  # up to TLS 1.2 the server's last word comes after our certificate
        data = plain.recv(_RECORD_BYTES)
        if data:
            incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                line.read(1)
        return bool(data)


def _distrusted(source: Source, error: ssl.SSLCertVerificationError) -> DriftlineError:
    """Return why we do not accept the source's certificate."""
    if error.verify_code not in _WRONG_NAME | _WRONG_TIME:
        return _refused(
            source,
            f"The source's certificate is not from the authority in `ca` ({error.verify_message}).",
            f"Ask the DBA for the ca.pem that issued it; {source.ca} holds another.",
        )
    names, dates = _certificate_of(source)
    if error.verify_code in _WRONG_TIME:
        state = "is not valid yet" if error.verify_code == min(_WRONG_TIME) else "has expired"
        return _refused(
            source,
            f"The source's certificate {state}{dates}.",
            "Have the DBA renew it: `driftline-source enroll`. If its dates are right, "
            "correct this machine's clock.",
        )
    asked = _server_name(source)
    choice = f'`server_name = "{names[0]}"`' if names else "`server_name`"
    shown = ", ".join(names[:_NAMES_SHOWN]) or "no name"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return _refused(
        source,
        f"The certificate of {source.address} is for {shown}{more}; {asked} was asked for.",
        f"If that is the source, set {choice} in [sources.{source.name}]; else correct "
        f"`address`, or have the DBA enroll again with --source-name {asked}.",
    )


def _certificate_of(source: Source) -> tuple[tuple[str, ...], str]:
    """Return the names in the source's certificate, and its dates as a clause.

    Its authority is verified; its name and dates are not.
    """
    context, name = context_of(source), _server_name(source)
    context.check_hostname = False
    context.verify_flags |= _NO_CHECK_TIME
    try:
        with connect(source) as plain, context.wrap_socket(plain, server_hostname=name) as line:
            der = line.getpeercert(True)
    except OSError:
        return (), ""
    assert der is not None  # verified, so there is one
    certificate = read_der(der)
    return (
        certificate.names,
        f": it is valid from {certificate.begins:%Y-%m-%d} to {certificate.ends:%Y-%m-%d}",
    )


def _alerted(source: Source, error: ssl.SSLError) -> DriftlineError:
    """Return the meaning of a handshake that failed for another reason than its certificate."""
    reason = error.reason or str(error)
    if not _REFUSALS.search(reason):
        return SourceUnreachable(
            f"The line to {source.address} was damaged or cut in the TLS handshake ({reason}).",
            where=f"source {source.name}",
            remedy="Run the command again; if it repeats, look for what changes bytes on the way.",
        )
    return _refused(
        source,
        f"{source.address} refused the TLS handshake: {reason}.",
        "Check that `certificate` was issued by the source's `client_ca`, and its dates.",
    )


def _rejected(source: Source) -> DriftlineError:
    """Return why the server ended each connection after it received our certificate."""
    assert source.certificate is not None
    begins, ends = validity(certificates(source)[1], source.certificate)
    now = datetime.now(UTC)
    if not begins <= now <= ends:
        state = "is not valid yet" if now < begins else "has expired"
        return _refused(
            source,
            f"Our certificate {state}: it is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}.",
            "Have it made anew: `driftline-source enroll`. If its dates are right, correct "
            "this machine's clock.",
        )
    return _refused(
        source,
        f"{source.address} closed the connection after it received our certificate.",
        f"Check that {source.certificate} was issued by the source's `client_ca`.",
    )


def _answers_in_plain_text(source: Source) -> bool:
    """Return True if the server answers the beginning of HTTP/2 with a frame of HTTP/2."""
    with connect(source) as plain:
        plain.sendall(_HTTP2_PREFACE)
        answer = plain.recv(_RECORD_BYTES)
    return bool(answer) and answer[0] not in _TLS_FIRST_BYTES


def _not_tls(source: Source) -> DriftlineError:
    return _refused(
        source,
        f"{source.address} does not speak TLS.",
        "Check that the address is the source agent's, and that its [server] has "
        "`certificate`, `key` and `client_ca`.",
    )


def _plain_text(source: Source) -> DriftlineError | None:
    """Speak HTTP/2 in plain text; a server that ends the line instead may want TLS."""
    if _answers_in_plain_text(source):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with connect(source) as plain, context.wrap_socket(plain):
            pass
    except OSError:
        raise ConnectionResetError(errno.ECONNRESET, "the line was cut off") from None
    return _refused(
        source,
        f"{source.address} speaks TLS, and `insecure = true` asks for plain text.",
        "Remove `insecure` and set `ca`, `certificate` and `key`.",
    )


def _refused(source: Source, message: str, remedy: str) -> Unauthenticated:
    return Unauthenticated(message, where=f"source {source.name}", remedy=remedy)


_PROC: Final = Path("/proc")


def process_claim(proc: Path = _PROC) -> tuple[tuple[str, bytes], ...]:
    """Return metadata of a call with our claim; empty where the system does not name itself.

    It rests for others who need the processors, not for its own warehouse. What is said tells a
    source elsewhere nothing.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        space = (proc / "self/ns/pid").readlink()
    except OSError:
        return ()
    return ((METADATA, claim(f"{boot} {space}", _topmost(proc))),)


def _topmost(proc: Path) -> int:
    """Return the process that started all of the warehouse's: ours, or the Java of spark-submit,
    whose child we are."""
    parent = os.getppid()
    try:
        is_java = (proc / str(parent) / "comm").read_text().strip() == "java"
    except OSError:
        return os.getpid()
    return parent if is_java else os.getpid()

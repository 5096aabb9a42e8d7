"""`doctor` on the line to one source: TCP, certificates, TLS, and who answers.

In the order in which they can fail; what comes after a failure is not tried. gRPC itself would
report a refused certificate, a wrong name and a closed port alike, so TCP and TLS
are spoken by hand first. Certificates are read with a few lines of DER, because the package that
could is not needed for anything else here.
"""

from __future__ import annotations

import base64
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from driftline.errors import ConfigurationError, DriftlineError, SourceUnreachable, Unauthenticated
from driftline.limits import CONTROL_S

from warehouse_agent.configure import Source
from warehouse_agent.link import Link, certificates, diagnose, host_and_port
from warehouse_agent.report import counted

RENEW_DAYS = 30  # before the end of a certificate, its days are said in capitals

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at the source found, or the error."""

    what: str
    text: str
    error: DriftlineError | None = None


def examine_source(source: Source, *, now: datetime | None = None) -> Iterator[Found]:
    """Each look, as it is made; the first that fails is the last."""
    moment = now or datetime.now(UTC)
    looks: list[tuple[str, Callable[[], str]]] = [("TCP", lambda: _tcp(source))]
    if not source.insecure:
        looks.append(("our certificate", lambda: _ours(source, moment)))
        looks.append(("TLS", lambda: _tls(source, moment)))
    looks.append(("agent", lambda: _agent(source)))
    for what, look in looks:
        name = f"source {source.name}: {what}"
        try:
            yield Found(name, look())
        except DriftlineError as error:
            yield Found(name, "", error)
            return


def _tcp(source: Source) -> str:
    host, port = host_and_port(source)
    began = time.monotonic()
    try:
        socket.create_connection((host, port), CONTROL_S).close()
    except OSError as error:
        raise diagnose(source) or SourceUnreachable(str(error), where=source.name) from error
    return f"{source.address} answers in {(time.monotonic() - began) * 1000:.0f} ms"


def _ours(source: Source, now: datetime) -> str:
    """Our certificate fits its key and is within its dates."""
    _, certificate, _ = certificates(source)
    assert source.certificate is not None
    assert source.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(source.certificate, source.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"{source.certificate.name} and {source.key.name} do not fit together: {error}.",
            where=f"sources.{source.name}.certificate",
            remedy="`driftline-source enroll` makes a set that fits together.",
        ) from None
    begins, ends = validity(certificate, source.certificate)
    return _dates(source, "Our certificate", begins, ends, now)


def _tls(source: Source, now: datetime) -> str:
    """The handshake, and what the source's certificate says."""
    if (error := diagnose(source)) is not None:
        raise error
    host, port = host_and_port(source)
    context = ssl.create_default_context(cafile=str(source.ca))
    context.load_cert_chain(str(source.certificate), str(source.key))
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), CONTROL_S) as plain,
            context.wrap_socket(plain, server_hostname=source.server_name or host) as line,
        ):
            der, told, version = line.getpeercert(True), line.getpeercert(), line.version()
    except OSError as problem:
        raise SourceUnreachable(f"The line was lost: {problem}.", where=source.name) from problem
    assert der is not None  # verified, so there is one
    assert told is not None
    names = [str(pair[1]) for pair in told.get("subjectAltName", ())]
    begins, ends = _validity(der)
    dates = _dates(source, "Their certificate", begins, ends, now)
    return f"{version}, certificate for {', '.join(names)}, {dates}"


def _agent(source: Source) -> str:
    with Link(source) as link:
        reply = link.describe("")
        agreed = link.agreed()
    names = ", ".join(sorted(reply.relations)) or "nothing"
    return (
        f"{reply.agent} on {reply.database}, protocol {agreed.protocol}; "
        f"publishes to this certificate: {names}"
    )


def _dates(source: Source, whose: str, begins: datetime, ends: datetime, now: datetime) -> str:
    if not begins <= now <= ends:
        state = "is not valid yet" if now < begins else "has expired"
        raise Unauthenticated(
            f"{whose} {state}: it is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}.",
            where=f"source {source.name}",
            remedy="Check this machine's clock, or have certificates made anew: "
            "`driftline-source enroll`.",
        )
    days = (ends - now).days
    urgent = " - RENEW IT SOON" if days < RENEW_DAYS else ""
    return f"valid until {ends:%Y-%m-%d}, {counted(days, 'day')} left{urgent}"


def validity(pem: bytes, path: Path) -> tuple[datetime, datetime]:
    """From when to when the first certificate of a PEM file is valid.

    Raises:
        ConfigurationError: it holds none.
    """
    match = _PEM.search(pem)
    try:
        return _validity(base64.b64decode(match[1])) if match else _none()
    except (ValueError, IndexError):
        raise ConfigurationError(f"{path} holds no certificate.", where=path.name) from None


def _none() -> tuple[datetime, datetime]:
    raise ValueError("no certificate")


def _validity(der: bytes) -> tuple[datetime, datetime]:
    """RFC 5280, section 4.1: Certificate { tbsCertificate { [0] version, serialNumber, signature,
    issuer, validity { notBefore, notAfter } … } … }."""
    fields = _elements(next(iter(_elements(der)))[1])
    inner = list(_elements(next(iter(fields))[1]))
    if inner[0][0] == 0xA0:  # version 1 has no field for its version
        inner = inner[1:]
    begins, ends = (_time(tag, value) for tag, value in _elements(inner[3][1]))
    return begins, ends


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER element in a row."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        yield tag, der[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    """UTCTime (two digits of the year, 1950 to 2049) or GeneralizedTime."""
    text = value.decode("ascii")
    if tag == 0x17:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)

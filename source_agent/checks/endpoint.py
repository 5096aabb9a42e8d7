"""Find of [server] whether `serve` could listen, and whether a warehouse would trust it.

Everything is tried as `serve` does it, and undone: certificates are read, the address is bound and
released. If the port is taken, its owner is identified, because a running agent is no problem. One
problem does not hide the others.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from driftline.errors import ConfigurationError, MalformedMessage
from driftline.limits import CONTROL_S
from driftline.x509 import Certificate, read_pem

from source_agent.config.file import Certificates, Endpoint, SourceConfig
from source_agent.printable import counted
from source_agent.server.certificates import WatchedCertificates

RENEW_DAYS = 30  # a certificate with fewer days left is marked
_RENEW = "Run `driftline-source enroll` into another directory, or have your authority renew it."


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """A finding about one setting of [server], and whether it is a problem."""

    what: str
    text: str
    problem: bool = False


def examine(config: SourceConfig, *, now: datetime | None = None) -> list[EndpointReport]:
    """Examine address, port and certificates; contact only this machine's own port."""
    endpoint = config.server
    reports = [_address(endpoint)]
    if endpoint.certificates is None:
        reports.append(EndpointReport("certificate", "none: plain text, on loopback only"))
    else:
        moment = now or datetime.now(UTC)
        reports += _certificates(endpoint.certificates, config.path.name, moment)
    return reports


def _certificates(files: Certificates, name: str, now: datetime) -> Iterator[EndpointReport]:
    try:
        WatchedCertificates(files, name)
    except ConfigurationError as error:
        yield EndpointReport("certificates", str(error), problem=True)
    else:
        yield EndpointReport("certificates", "readable; certificate and key fit together")
    for setting, path in (("certificate", files.certificate), ("client_ca", files.client_ca)):
        try:
            read = read_pem(path.read_bytes())
        except (OSError, MalformedMessage):
            continue  # reported above
        yield _dates(setting, path, read, now)


def _dates(setting: str, path: Path, read: Certificate, now: datetime) -> EndpointReport:
    names = f"for {', '.join(read.names)}; " if read.names else ""
    span = f"from {read.begins:%Y-%m-%d} to {read.ends:%Y-%m-%d}"
    if not read.begins <= now <= read.ends:
        state = "is not valid yet" if now < read.begins else "has expired"
        text = f"{path.name} {state}: it is valid {span}. {_RENEW}"
        return EndpointReport(setting, text, problem=True)
    days = (read.ends - now).days
    urgent = " - RENEW IT SOON" if days < RENEW_DAYS else ""
    left = f"valid until {read.ends:%Y-%m-%d}, {counted(days, 'day')} left{urgent}"
    return EndpointReport(setting, f"{path.name}: {names}{left}")


def _address(endpoint: Endpoint) -> EndpointReport:
    where = endpoint.address
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with closing(socket.socket(family, kind)) as listening:
            # As `serve` does: closed connections of an ended agent do not block the address.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
    except socket.gaierror as error:
        text = f"{endpoint.host} is not known: {error.strerror}. Correct server.listen."
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(endpoint)
        reasons = {
            errno.EADDRNOTAVAIL: "it is not an address of this machine",
            errno.EACCES: "this account may not; ports below 1024 need root",
        }
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        text = f"It is not possible to listen on {where}: {reason}. Correct server.listen."
    else:
        return EndpointReport("listen", f"{where} is free")
    return EndpointReport("listen", text, problem=True)


def _taken(endpoint: Endpoint) -> EndpointReport:
    host = _reached(endpoint.host)
    is_ours = _is_agent if endpoint.certificates is None else _has_our_certificate
    if is_ours(endpoint, host):
        return EndpointReport("listen", f"an agent listens on {endpoint.address} already")
    return EndpointReport(
        "listen",
        f"Something that is not this agent listens on {endpoint.address}. End it, or set another "
        "port in server.listen.",
        problem=True,
    )


def _reached(host: str) -> str:
    """Return the address at which this machine reaches a listener on this host."""
    try:
        listening = ip_address(host)
    except ValueError:
        return host
    if not listening.is_unspecified:
        return host
    return "127.0.0.1" if listening.version == 4 else "::1"


def _has_our_certificate(endpoint: Endpoint, host: str) -> bool:
    """Return True if the listener shows the certificate of the file; trust it for nothing else."""
    assert endpoint.certificates is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        ours = ssl.PEM_cert_to_DER_cert(endpoint.certificates.certificate.read_text("ascii"))
        with (
            socket.create_connection((host, endpoint.port), CONTROL_S) as plain,
            context.wrap_socket(plain) as line,
        ):
            return line.getpeercert(binary_form=True) == ours
    except (OSError, ValueError):
        return False


def _is_agent(endpoint: Endpoint, host: str) -> bool:
    import grpc
    from driftline import wire_pb2 as pb
    from driftline.wire_pb2_grpc import SourceStub

    target = f"[{host}]:{endpoint.port}" if ":" in host else f"{host}:{endpoint.port}"
    with grpc.insecure_channel(target) as channel:
        stub: SourceStub = SourceStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply: pb.DescribeReply = stub.Describe(pb.DescribeRequest(), timeout=CONTROL_S)
        except grpc.RpcError:
            return False
    return reply.agent.startswith("driftline-source ")

"""`doctor` on the line to one source: TCP, certificates, TLS, and who answers.

In the order in which they can fail; what comes after a failure is not tried. gRPC itself would
report a refused certificate, a wrong name and a closed port alike, so TCP and TLS are spoken by
hand first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from driftline.errors import DriftlineError, SourceUnreachable, Unauthenticated
from driftline.limits import CONTROL_S
from driftline.x509 import read_der

from warehouse_agent.config import Source
from warehouse_agent.report import counted
from warehouse_agent.runs.preflight import reach
from warehouse_agent.transport.certificates import certificates, context_of, validity
from warehouse_agent.transport.channel import Link
from warehouse_agent.transport.handshake import connect, diagnose, host_and_port, proxy_between

RENEW_DAYS = 30  # before the end of a certificate, its days are said in capitals


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
        if proxy_between(source) is None:  # else gRPC alone can look
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
    if (proxy := proxy_between(source)) is not None:
        return f"not tried: gRPC reaches {source.address} through the proxy {proxy}"
    began = time.monotonic()
    reach(source)
    return f"{source.address} answers in {(time.monotonic() - began) * 1000:.0f} ms"


def _ours(source: Source, now: datetime) -> str:
    """Our certificate fits its key and is within its dates."""
    context_of(source)
    _, certificate, _ = certificates(source)
    assert source.certificate is not None
    begins, ends = validity(certificate, source.certificate)
    return _dates(source, "Our certificate", begins, ends, now)


def _tls(source: Source, now: datetime) -> str:
    """The handshake, and what the source's certificate says."""
    if (error := diagnose(source)) is not None:
        raise error
    host, _ = host_and_port(source)
    context = context_of(source)
    try:
        with (
            connect(source, CONTROL_S) as plain,
            context.wrap_socket(plain, server_hostname=source.server_name or host) as line,
        ):
            der, version = line.getpeercert(True), line.version()
    except OSError as problem:
        raise SourceUnreachable(f"The line was lost: {problem}.", where=source.name) from problem
    assert der is not None  # verified, so there is one
    theirs = read_der(der)
    dates = _dates(source, "Their certificate", theirs.begins, theirs.ends, now)
    return f"{version}, certificate for {', '.join(theirs.names)}, {dates}"


def _agent(source: Source) -> str:
    with Link(source) as link:
        reply = link.describe("")
        agreed = link.agreed()
    names = ", ".join(sorted(reply.relations)) or "nothing"
    return (
        f"{reply.agent} on {reply.database}, protocol {agreed.protocol}; "
        f"serves to this certificate: {names}"
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

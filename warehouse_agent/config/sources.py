"""The tables [sources.NAME]: where a source agent is, and how its certificate is checked."""

from __future__ import annotations

from driftline.settings.declarations import SettingsTable, is_loopback
from driftline.settings.kinds import ADDRESS, FLAG, PATH, TEXT, ZONE, choice, list_of

from warehouse_agent.config import timing
from warehouse_agent.config.settings import Source
from warehouse_agent.planning.network import Objective

_TLS = "without `insecure`"


class SourceTable(SettingsTable):
    """A source agent, and how its certificate is checked."""

    address = ADDRESS.required(
        "`HOST:PORT` of the source agent; IPv6 as `[::1]:7443`. gRPC uses the HTTP proxy of"
        " `grpc_proxy`, `https_proxy` or `http_proxy` in the environment, except for hosts in"
        " `no_grpc_proxy` or `no_proxy`; no direct connection is then tried first"
    )
    ca = PATH.required(
        "PEM file: the authority that issued the source's certificate (`driftline-source enroll`)",
        _TLS,
    )
    certificate = PATH.required("PEM file: our certificate", _TLS)
    key = PATH.required(
        "PEM file: our key; readable by its owner alone (or by its group if root owns it)", _TLS
    )
    server_name = TEXT.optional(
        "the name in the source's certificate, if different", "the host of `address`"
    )
    insecure = FLAG.by_default(
        False,
        "plain text, on this machine only; to loopback addresses, without `ca`, `certificate`,"
        " `key` and `server_name`",
    )
    objective = choice(Objective).by_default(
        Objective.SECONDS.value,
        'what refreshes minimise; `"seconds"` of line, round trips and reading, as measured; or'
        ' `"bytes"` for metered lines: no bytes to save a round trip or a scan, and zstd 19 for the'
        " rows of refreshes (30 µs a row at the source; first loads use 3)",
    )
    time_zone = ZONE.by_default(
        timing.UTC,
        'the zone of its wall clock, by which its jobs run; such as `"Europe/Vienna"`, see'
        " [scheduling](operating/scheduling.md)",
    )
    refresh_hours = (
        list_of(timing.SPAN, timing.SPANS, least=1)
        .then(timing.apart)
        .optional("when scheduled refreshes may begin, by that clock; end exclusive", "always")
    )


def parse(name: str, table: SourceTable) -> Source:
    """Return the source of one table. Raises ConfigurationError, with the key."""
    host, port, address = table.address
    if port == 0:
        raise table.error("address", "Port 0 is no port of a server.")
    hours = table.refresh_hours or ()
    if not table.insecure:
        return Source(
            name,
            address,
            ca=table.ca,
            certificate=table.certificate,
            key=table.key,
            server_name=table.server_name,
            objective=table.objective,
            time_zone=table.time_zone,
            refresh_hours=hours,
        )
    if not is_loopback(host):
        raise table.error(
            "insecure",
            f"Plain text is allowed on loopback only, and {host} is another machine.",
            "Remove `insecure` and name the certificates of `driftline-source enroll`.",
        )
    for key in ("ca", "certificate", "key", "server_name"):
        if table.has(key):
            raise table.error(
                key, "It has no effect beside `insecure = true`.", "Remove one of the two."
            )
    return Source(
        name,
        address,
        insecure=True,
        objective=table.objective,
        time_zone=table.time_zone,
        refresh_hours=hours,
    )

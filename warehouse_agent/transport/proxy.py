"""The HTTP proxy through which gRPC reaches a source, by gRPC's own rules.

gRPC takes a proxy from the environment. A connection that this agent makes by hand does not use it,
so such a connection says nothing about a source behind a proxy.

Rules (gRPC core 1.85, `http_proxy_mapper`): the first of `grpc_proxy`, `https_proxy` and
`http_proxy` that is set decides, in small letters; an empty one means no proxy, and so does any
scheme but http. `no_grpc_proxy`, else `no_proxy`, lists ends of host names and networks.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

_PROXY = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY = ("no_grpc_proxy", "no_proxy")


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

"""Check those who are told of refreshes, [notify] and [metrics], for `doctor`. Nothing is sent.

`driftline notify` sends a test message to each of them.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from driftline.errors import ConfigurationError
from driftline.metrics_server import MetricsServer
from driftline.settings.declarations import is_loopback

from warehouse_agent.config import WarehouseConfig
from warehouse_agent.config.notify import key_of, read_address
from warehouse_agent.config.settings import SecretAddress

_PORTS = {"http": 80, "https": 443}
_PAGE_S = 2.0  # for the page that `driftline run` serves


def checks(config: WarehouseConfig) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what checks each who is told, by name; each says what it found, or raises
    ConfigurationError."""
    metrics, notify = config.metrics, config.notify
    if metrics is not None and metrics.textfile is not None:
        yield "metrics: textfile", partial(_textfile, metrics.textfile)
    if metrics is not None and metrics.listen is not None:
        yield "metrics: listen", partial(_listen, *metrics.listen)
    if notify.command is not None:
        yield "notify: command", partial(_program, notify.command[0], config.file.parent)
    if notify.webhook is not None:
        yield "notify: webhook", partial(_address, notify.webhook)
    if notify.webhook_secret_file is not None:
        yield "notify: webhook_secret_file", partial(_key, notify.webhook_secret_file)
    if notify.heartbeat is not None:
        yield "notify: heartbeat", partial(_address, notify.heartbeat)


def _textfile(file: Path) -> str:
    """Try the folder of the textfile."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent):
            return f"{file} can be written"
    except OSError as error:
        raise ConfigurationError(
            f"Nothing can be written into {file.parent}: {error.strerror}.",
            where="metrics.textfile",
            remedy="Make the folder of node_exporter's textfile collector, and let this login write"
            " there.",
        ) from None


def _listen(host: str, port: int) -> str:
    """Listen for a moment, unless `driftline run` does already."""
    try:
        MetricsServer(host, port, lambda: None).stop()
    except ConfigurationError:
        if not _is_served(host, port):
            raise
        return f"{host}:{port} is served by a `driftline run`"
    return f"{host}:{port} is free"


def _is_served(host: str, port: int) -> bool:
    """Return True if a page with our numbers is at an address."""
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PAGE_S) as answer:
            return b"driftline_" in answer.read(1 << 16)
    except (OSError, ValueError):
        return False


def _program(name: str, folder: Path) -> str:
    """Look for a program as it is started: in the folder of the configuration."""
    found = str(folder / name) if os.path.dirname(name) else shutil.which(name)
    if found is None or not os.path.isfile(found):
        raise ConfigurationError(
            f"There is no program {name}.",
            where="notify.command",
            remedy="Install it, or write its whole path.",
        )
    if not os.access(found, os.X_OK):
        raise ConfigurationError(
            f"{found} may not be run by this login.",
            where="notify.command",
            remedy=f"Run: chmod +x {found}",
        )
    return f"{found} can be run; `driftline notify` tries it"


def _address(one: SecretAddress) -> str:
    """Read an address and resolve its host; the address itself may be a secret."""
    parts = urlsplit(read_address(one))
    host, scheme = parts.hostname or "", parts.scheme
    proxies = {} if is_loopback(host) else urllib.request.getproxies()
    if scheme in proxies and not urllib.request.proxy_bypass(parts.netloc):
        return f"{scheme}, {host} through the proxy of `{scheme}_proxy`; not asked"
    try:
        found = socket.getaddrinfo(host, parts.port or _PORTS[scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name of a host"
        raise ConfigurationError(
            f"The host {host} is not found: {why}.",
            where=one.where,
            remedy="Check its name, and the name servers of this machine.",
        ) from None
    return f"{scheme}, {host} is {found[0][4][0]}; not asked: `driftline notify` sends a test"


def _key(file: Path) -> str:
    """Read the key that signs messages."""
    key_of(file, "notify.webhook_secret_file")
    return f"{file} can be read, by nobody else"

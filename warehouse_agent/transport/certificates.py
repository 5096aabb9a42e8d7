"""The files of mutual TLS at the warehouse, and the dates in a certificate."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

from driftline.errors import ConfigurationError, MalformedMessage
from driftline.settings.declarations import read_secret
from driftline.x509 import read_pem

from warehouse_agent.config import Source

_ENROLL = "`driftline-source enroll` makes a set that fits together."


def certificates(source: Source) -> tuple[bytes, bytes, bytes]:
    """Return the authority, our certificate and our key, in PEM.

    Raises:
        ConfigurationError: a file cannot be read, or others can read the key.
    """
    read = []
    files = (("ca", source.ca), ("certificate", source.certificate), ("key", source.key))
    for setting, path in files:
        assert path is not None
        try:
            data, exposed = read_secret(path)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error.strerror}.",
                where=f"sources.{source.name}.{setting}",
                remedy="`driftline-source enroll` makes certificates for both sides.",
            ) from None
        if exposed and setting == "key":
            raise ConfigurationError(
                f"The key {path} {exposed}.",
                where=f"sources.{source.name}.{setting}",
                remedy=f"Run: chmod 600 {path}",
            )
        read.append(data)
    return read[0], read[1], read[2]


def context_of(source: Source) -> ssl.SSLContext:
    """Return the TLS context of a client that has the source's settings.

    Raises:
        ConfigurationError: a file cannot be read, holds no certificate, or does not fit its key.
    """
    authority, certificate, _ = certificates(source)
    assert source.certificate is not None
    assert source.key is not None
    validity(certificate, source.certificate)
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigurationError(
            f"{source.ca} holds no certificate.", where=f"sources.{source.name}.ca", remedy=_ENROLL
        ) from None
    try:
        context.load_cert_chain(source.certificate, source.key, password="")
    except (ssl.SSLError, ValueError) as error:
        pair, reason = f"{source.certificate.name} and {source.key.name}", str(error)
        if isinstance(error, ssl.SSLError) and error.reason:
            reason = error.reason.lower().replace("_", " ")
        raise ConfigurationError(
            f"{pair} do not fit together: {reason}.",
            where=f"sources.{source.name}.certificate",
            remedy=_ENROLL,
        ) from None
    context.set_alpn_protocols(["h2"])
    return context


def validity(pem: bytes, path: Path) -> tuple[datetime, datetime]:
    """Return begin and end of the validity of a PEM file's first certificate.

    Raises:
        ConfigurationError: the file holds none.
    """
    try:
        read = read_pem(pem)
    except MalformedMessage:
        raise ConfigurationError(f"{path} holds no certificate.", where=path.name) from None
    return read.begins, read.ends

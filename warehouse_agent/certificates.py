"""The files of mutual TLS at the warehouse, and the dates in a certificate.

Certificates are read with a few lines of DER, because the package that could is not needed for
anything else here.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from driftline.errors import ConfigurationError
from driftline.settings import read_secret

from warehouse_agent.configure import Source

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
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
        pair = f"{source.certificate.name} and {source.key.name}"
        raise ConfigurationError(
            f"{pair} do not fit together: {_reason(error)}.",
            where=f"sources.{source.name}.certificate",
            remedy=_ENROLL,
        ) from None
    context.set_alpn_protocols(["h2"])
    return context


def _reason(error: ssl.SSLError | ValueError) -> str:
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


def validity(pem: bytes, path: Path) -> tuple[datetime, datetime]:
    """Return from when to when the first certificate of a PEM file is valid.

    Raises:
        ConfigurationError: it holds none.
    """
    match = _PEM.search(pem)
    try:
        return validity_of(base64.b64decode(match[1])) if match else _none()
    except (ValueError, IndexError):
        raise ConfigurationError(f"{path} holds no certificate.", where=path.name) from None


def _none() -> tuple[datetime, datetime]:
    raise ValueError("no certificate")


def validity_of(der: bytes) -> tuple[datetime, datetime]:
    """Return from when to when a certificate in DER is valid.

    RFC 5280, section 4.1: Certificate { tbsCertificate { [0] version, serialNumber, signature,
    issuer, validity { notBefore, notAfter } … } … }.
    """
    fields = _elements(next(iter(_elements(der)))[1])
    inner = list(_elements(next(iter(fields))[1]))
    if inner[0][0] == 0xA0:  # version 1 has no field for its version
        inner = inner[1:]
    begins, ends = (_time(tag, value) for tag, value in _elements(inner[3][1]))
    return begins, ends


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each DER element in a row."""
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

"""Read dates and names in a certificate (RFC 5280).

Both agents check certificates before use. `cryptography` could read them, but is needed only to
make certificates. Nothing is verified here: TLS does that.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address

from driftline.errors import MalformedMessage

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
_VERSION, _EXTENSIONS = 0xA0, 0xA3  # explicit tags [0] and [3] of a TBSCertificate
_OCTETS = 0x04
_ALTERNATIVE_NAMES = b"\x55\x1d\x11"  # id-ce-subjectAltName, 2.5.29.17
_DNS, _URI, _ADDRESS = 0x82, 0x86, 0x87  # GeneralName: context tags 2, 6 and 7
_UTC_TIME = 0x17  # with two digits of the year, 1950 to 2049; else GeneralizedTime


@dataclass(frozen=True, slots=True)
class Certificate:
    """Start and end of validity, UTC, and alternative names: DNS, addresses, URIs."""

    begins: datetime
    ends: datetime
    names: tuple[str, ...]


def read_pem(data: bytes) -> Certificate:
    """Read the first certificate of a PEM file; raise MalformedMessage if there is none."""
    match = _PEM.search(data)
    if match is None:
        raise MalformedMessage("It holds no certificate (no BEGIN CERTIFICATE).")
    try:
        return read_der(base64.b64decode(match[1]))
    except ValueError as error:
        raise MalformedMessage(f"It holds no certificate ({error}).") from None


def read_der(data: bytes) -> Certificate:
    """Read a certificate in DER; raise MalformedMessage for other bytes."""
    try:
        # Certificate { TBSCertificate { [0] version, serialNumber, signature, issuer,
        # validity { notBefore, notAfter }, subject, subjectPublicKeyInfo, …, [3] extensions } … }
        certificate = next(iter(_elements(data)))[1]
        fields = list(_elements(next(iter(_elements(certificate)))[1]))
        if fields[0][0] == _VERSION:  # absent in version 1
            fields = fields[1:]
        begins, ends = (_time(tag, value) for tag, value in _elements(fields[3][1]))
        extensions = (value for tag, value in fields if tag == _EXTENSIONS)
        names = tuple(name for value in extensions for name in _names(value))
    except (ValueError, IndexError, StopIteration) as error:
        raise MalformedMessage(f"It is no certificate ({error}).") from None
    return Certificate(begins, ends, names)


def _names(extensions: bytes) -> Iterator[str]:
    """Yield the alternative names in `Extensions { { extnID, critical, extnValue }, … }`."""
    for _, extension in _elements(next(iter(_elements(extensions)))[1]):
        parts = list(_elements(extension))
        if parts[0][1] != _ALTERNATIVE_NAMES or parts[-1][0] != _OCTETS:
            continue
        for tag, value in _elements(next(iter(_elements(parts[-1][1])))[1]):
            if tag in {_DNS, _URI}:
                yield value.decode("ascii", "replace")
            elif tag == _ADDRESS:
                yield str(ip_address(value))


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each DER element in a row."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("cut off")
        yield tag, der[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)

"""`enroll`: make a small certificate authority and both certificate pairs.

Three ECDSA P-256 key pairs: the authority, the source (named by the host names and addresses that
the warehouse dials) and the warehouse (named by a URI, which `allow` of source.toml matches). The
DBA then keeps ca.key offline. Nothing is overwritten; keys are created with mode 0600. The import
fails without the optional package `cryptography`.

Rejected: RSA (a handshake three times the size) and a passphrase (a service cannot be asked).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose
from cryptography.x509.oid import NameOID
from driftline.errors import ConfigurationError, UsageError

CA_DAYS = 3650
DAYS = 825  # the longest validity that TLS libraries accept of a private authority
_BACKDATE = timedelta(hours=1)  # of the beginning, for clocks that differ
_KEY_MODE, _CERTIFICATE_MODE = 0o600, 0o644
_NAME = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9._-]{0,61}[A-Za-z0-9_-])?")

_Extensions = list[tuple[x509.ExtensionType, bool]]  # and whether each is critical


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def enroll(
    directory: Path,
    *,
    source_names: Sequence[str],
    warehouse_name: str = "warehouse",
    days: int = DAYS,
    now: datetime | None = None,
) -> list[Path]:
    """Write ca, source and warehouse, each as .pem and .key, into the directory; return the paths.

    source_names: host names and IP addresses under which the warehouse reaches the source;
    warehouse_name: makes `spiffe://driftline/warehouse/NAME`; days: validity of the two pairs.

    Raises ConfigurationError if a file cannot be written, UsageError if one exists already or an
    argument is not allowed.
    """
    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"The validity is {days} days; it must be 1 to {CA_DAYS} days.")
    if not source_names:
        raise UsageError("A source needs at least one host name.", remedy="Add --source-name HOST.")
    if not _NAME.fullmatch(warehouse_name):
        raise UsageError(f"{warehouse_name!r} is not a name of letters, digits, '.', '-' and '_'.")
    alternatives = [_alternative(name) for name in source_names]
    paths = {
        f"{who}.{kind}": directory / f"{who}.{kind}"
        for who in ("ca", "source", "warehouse")
        for kind in ("pem", "key")
    }
    if existing := [path.name for path in paths.values() if os.path.lexists(path)]:
        raise UsageError(
            f"{', '.join(existing)} in {directory} would be overwritten.",
            remedy="Choose another --directory, or move them away first.",
        )
    began = (now or datetime.now(UTC)) - _BACKDATE
    authority = _authority(began)
    source = _issue(authority, source_names[0], alternatives, Purpose.SERVER_AUTH, began, days)
    uri = x509.UniformResourceIdentifier(f"spiffe://driftline/warehouse/{warehouse_name}")
    warehouse = _issue(authority, warehouse_name, [uri], Purpose.CLIENT_AUTH, began, days)
    pairs = {"ca": authority, "source": source, "warehouse": warehouse}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for who, pair in pairs.items():
            secret = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            _write(paths[f"{who}.key"], secret, _KEY_MODE)
            public = pair.certificate.public_bytes(Encoding.PEM)
            _write(paths[f"{who}.pem"], public, _CERTIFICATE_MODE)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return list(paths.values())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        labels = name.split(".")
        if len(name) > 253 or not all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", x) for x in labels):
            raise UsageError(
                f"{name!r} is neither a host name nor an IP address.",
                remedy="Give --source-name without scheme and port.",
            ) from None
        return x509.DNSName(name)


def _authority(began: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    extensions: _Extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(is_authority=True), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    ]
    return _signed(key, "driftline authority", extensions, began, CA_DAYS, None)


def _issue(
    authority: _Pair,
    common_name: str,
    alternatives: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    began: datetime,
    days: int,
) -> _Pair:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    extensions: _Extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName(alternatives), False),
        (issuer, False),
    ]
    key = ec.generate_private_key(ec.SECP256R1())
    return _signed(key, common_name, extensions, began, days, authority)


def _signed(
    key: ec.EllipticCurvePrivateKey,
    common_name: str,
    extensions: _Extensions,
    began: datetime,
    days: int,
    authority: _Pair | None,
) -> _Pair:
    """Return a certificate of the key, signed by the authority, or by the key itself."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "driftline"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=days))
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return _Pair(builder.sign(authority.key if authority else key, hashes.SHA256()), key)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file, "wb") as out:
        out.write(data)

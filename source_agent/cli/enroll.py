"""A small certificate authority and both certificate pairs, for those who have none.

Three ECDSA P-256 key pairs: the authority, the source (named by its host names and addresses, as
the warehouse dials them) and the warehouse (named by a URI, which `allow` of source.toml matches).
The DBA keeps ca.key offline afterwards; it is needed only to enroll again.

Nothing that exists is overwritten. Keys are created with mode 0600, never widened later.
Rejected: RSA (a handshake three times the size) and a passphrase (a service has nobody to ask).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS = 3650
DAYS = 825  # the longest that current TLS stacks accept of a private authority
_BACKDATE = timedelta(hours=1)  # of the beginning, for clocks that differ
_KEY_MODE, _CERTIFICATE_MODE = 0o600, 0o644
_NAME = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9._-]{0,61}[A-Za-z0-9_-])?")


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


def enroll(
    directory: Path,
    *,
    source_names: Sequence[str],
    warehouse_name: str = "warehouse",
    days: int = DAYS,
    now: datetime | None = None,
) -> list[Path]:
    """Write ca, source and warehouse, each as .pem and .key, into the directory.

    Args:
        source_names: host names and IP addresses under which the warehouse reaches the source.
        warehouse_name: makes `spiffe://driftline/warehouse/NAME`.
        days: of validity of the two pairs, at most those of the authority.

    Raises:
        ConfigurationError: `cryptography` is not installed, or the files cannot be written.
        UsageError: a file exists already, or a name is none.
    """
    _require_cryptography()
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"{days} days of validity are not possible; 1 to {CA_DAYS} are.")
    if not source_names:
        raise UsageError("A source needs at least one host name.", remedy="Add --source-name HOST.")
    if not _NAME.fullmatch(warehouse_name):
        raise UsageError(f"{warehouse_name!r} is no name: letters, digits, '.', '-' and '_'.")
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
    source = _issue(
        authority, source_names[0], alternatives, ExtendedKeyUsageOID.SERVER_AUTH, began, days
    )
    uri = x509.UniformResourceIdentifier(f"spiffe://driftline/warehouse/{warehouse_name}")
    warehouse = _issue(
        authority, warehouse_name, [uri], ExtendedKeyUsageOID.CLIENT_AUTH, began, days
    )
    pairs = {"ca": authority, "source": source, "warehouse": warehouse}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for who, pair in pairs.items():
            _write(paths[f"{who}.key"], _key_bytes(pair), _KEY_MODE)
            _write(paths[f"{who}.pem"], _certificate_bytes(pair), _CERTIFICATE_MODE)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return list(paths.values())


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "`enroll` needs the package `cryptography`, which is not installed.",
            remedy="Run: pip install 'driftline[enroll]'. It is needed for this command only.",
        ) from None


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

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


def _named(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "driftline"),
            x509.NameAttribute(NameOID.COMMON_NAME, text[:64]),
        ]
    )


def _authority(began: datetime) -> _Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("driftline authority")
    built = _builder(name, name, key, began, CA_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(_usage(is_authority=True), critical=True)
    built = built.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _Pair(built.sign(key, hashes.SHA256()), key)


def _issue(
    authority: _Pair,
    common_name: str,
    alternatives: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    began: datetime,
    days: int,
) -> _Pair:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    built = _builder(_named(common_name), issuer, key, began, days)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(is_authority=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.SubjectAlternativeName(alternatives), False),
        (
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            False,
        ),
    ]
    for extension, critical in extensions:
        built = built.add_extension(extension, critical=critical)
    return _Pair(built.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    began: datetime,
    days: int,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=days))
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

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


def _key_bytes(pair: _Pair) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_bytes(pair: _Pair) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return pair.certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Creates the file with its mode at once; fails where somebody was faster."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file, "wb") as out:
        out.write(data)

"""`enroll`: make a small certificate authority and both certificate pairs.

Three ECDSA P-256 key pairs: the authority, the source (named by the host names and addresses that
the warehouse dials) and the warehouse (named by a URI, which `allow` of source.toml matches). The
DBA then keeps ca.key offline. With the folder of an authority that exists, which may also be one of
RSA, it makes the pairs that are named, and no authority. Nothing is overwritten; keys are created
with mode 0600. The import fails without the optional package `cryptography`.

Rejected: RSA (a handshake three times the size) and a passphrase (a service cannot be asked).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose
from cryptography.x509.oid import NameOID
from driftline.errors import ConfigurationError, UsageError
from driftline.settings.declarations import read_secret

CA_DAYS = 3650
WAREHOUSE_NAME = "warehouse"
DAYS = 825  # the longest validity that TLS libraries accept of a private authority
_BACKDATE = timedelta(hours=1)  # of the beginning, for clocks that differ
_KEY_MODE, _CERTIFICATE_MODE, _FOLDER_MODE = 0o600, 0o644, 0o755
_NAME = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9._-]{0,61}[A-Za-z0-9_-])?")

_Extensions = list[tuple[x509.ExtensionType, bool]]  # and whether each is critical


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def enroll(
    directory: Path,
    *,
    source_names: Sequence[str],
    warehouse_name: str | None = None,
    days: int = DAYS,
    authority: Path | None = None,
    now: datetime | None = None,
) -> list[Path]:
    """Write ca, source and warehouse, each as .pem and .key, into the directory; return the paths.

    source_names: host names and IP addresses under which the warehouse reaches the source;
    warehouse_name: makes `spiffe://driftline/warehouse/NAME`, by default `warehouse`; days:
    validity of the two pairs; authority: a folder with ca.pem and ca.key, which then sign the pair
    of the source if it is named and that of the warehouse if it is; ca.key is not written.

    Raises ConfigurationError if a file cannot be written or the authority cannot be used,
    UsageError if a file exists already or an argument is not allowed.
    """
    who = _pairs_of(source_names, warehouse_name, days, has_authority=authority is not None)
    alternatives = [_alternative(name) for name in source_names]
    began = (now or datetime.now(UTC)) - _BACKDATE
    signer = _existing(authority, began) if authority is not None else _authority(began)
    named = warehouse_name or WAREHOUSE_NAME
    uri = x509.UniformResourceIdentifier(f"spiffe://driftline/warehouse/{named}")
    files = {} if authority is not None else _files("ca", signer)
    public = directory / "ca.pem"
    if authority is not None and not _is_same(public, authority / "ca.pem"):
        files["ca.pem"] = (authority / "ca.pem").read_bytes()  # all of it: it may be a chain
    if "source" in who:
        files |= _files(
            "source",
            _issue(signer, source_names[0], alternatives, Purpose.SERVER_AUTH, began, days),
        )
    if "warehouse" in who:
        files |= _files("warehouse", _issue(signer, named, [uri], Purpose.CLIENT_AUTH, began, days))
    _write_all(directory, files)
    return [directory / name for name in files]


def _pairs_of(
    source_names: Sequence[str], warehouse_name: str | None, days: int, *, has_authority: bool
) -> set[str]:
    """Return whose pairs are made; raise UsageError if the arguments are not allowed."""
    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"The validity is {days} days; it must be 1 to {CA_DAYS} days.")
    if has_authority and not source_names and warehouse_name is None:
        raise UsageError(
            "Nothing is named that the authority could sign.",
            remedy="Add --source-name HOST for a source, --warehouse-name NAME for a warehouse, or"
            " both.",
        )
    if not has_authority and not source_names:
        raise UsageError("A source needs at least one host name.", remedy="Add --source-name HOST.")
    if not _NAME.fullmatch(warehouse_name or WAREHOUSE_NAME):
        raise UsageError(f"{warehouse_name!r} is not a name of letters, digits, '.', '-' and '_'.")
    makes_source, makes_warehouse = bool(source_names), warehouse_name is not None
    return {
        who
        for who, is_made in (("source", makes_source), ("warehouse", makes_warehouse))
        if is_made or not has_authority
    }


def _existing(folder: Path, now: datetime) -> _Pair:
    """Return the authority in a folder. Raises ConfigurationError if it cannot sign."""
    pem, secret = folder / "ca.pem", folder / "ca.key"
    try:
        certificate = x509.load_pem_x509_certificate(pem.read_bytes())
        data, exposed = read_secret(secret)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename} cannot be read: {error.strerror}.",
            remedy="Give --authority the folder that has the authority's ca.pem and ca.key.",
        ) from None
    except ValueError:
        raise _unusable(pem, "is no certificate in PEM") from None
    if exposed:
        raise _unusable(secret, exposed, f"Run: chmod 600 {secret}")
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        remedy = (
            f"Run: openssl pkey -in {secret} -out ca.key, in a folder of its own, and copy ca.pem"
            " there."
        )
        raise _unusable(secret, "has a passphrase", remedy) from None
    except (ValueError, UnsupportedAlgorithm):
        raise _unusable(secret, "is no private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise _unusable(secret, "is neither a key of ECDSA nor of RSA")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise _unusable(secret, f"is not the key of {pem}")
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        is_authority = basic.ca
    except (x509.ExtensionNotFound, ValueError):
        is_authority = False
    if not is_authority:
        raise _unusable(pem, "is not the certificate of an authority")
    if certificate.not_valid_after_utc <= now + _BACKDATE:
        ended = certificate.not_valid_after_utc.date()
        remedy = (
            "Make a new one: leave out --authority, and see docs/operating/install.md#certificates."
        )
        raise _unusable(pem, f"expired on {ended}", remedy)
    return _Pair(certificate, key)


def _unusable(path: Path, what: str, remedy: str = "Give the files of one authority.") -> Exception:
    return ConfigurationError(f"{path} {what}.", remedy=remedy)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _files(who: str, pair: _Pair) -> dict[str, bytes]:
    secret = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {f"{who}.pem": pair.certificate.public_bytes(Encoding.PEM), f"{who}.key": secret}


def _write_all(directory: Path, files: dict[str, bytes]) -> None:
    if existing := [name for name in files if os.path.lexists(directory / name)]:
        raise UsageError(
            f"{', '.join(existing)} in {directory} would be overwritten.",
            remedy="Choose another --directory, or move them away first.",
        )
    try:
        directory.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        for name, data in files.items():
            mode = _KEY_MODE if name.endswith(".key") else _CERTIFICATE_MODE
            _write(directory / name, data, mode)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}.") from None


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
    with contextlib.suppress(x509.ExtensionNotFound):  # another program may name keys otherwise
        named = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(named.value)
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
    ends = began + timedelta(days=days)
    if authority is not None:  # a certificate counts no longer than its authority
        ends = min(ends, authority.certificate.not_valid_after_utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(ends)
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

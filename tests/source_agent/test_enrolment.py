"""Enrolling: the files, their modes and names, and that real TLS accepts them."""

from __future__ import annotations

import inspect
import shutil
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from driftline.errors import ConfigurationError, UsageError

from source_agent.enrolment import enroll

NAMES = ["ca.pem", "ca.key", "source.pem", "source.key", "warehouse.pem", "warehouse.key"]
KEY_USAGES = inspect.signature(x509.KeyUsage).parameters


def certificate_of(folder: Path, who: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{who}.pem").read_bytes())


def alternatives(folder: Path, who: str) -> x509.SubjectAlternativeName:
    return (
        certificate_of(folder, who)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )


def test_what_is_written(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    folder = tmp_path / "new" / "certs"
    made = enroll(
        folder,
        source_names=["erp.example", "10.0.0.7", "::1"],
        warehouse_name="lake",
        days=90,
        now=now,
    )
    assert sorted(path.name for path in made) == sorted(NAMES)
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    for name in NAMES:
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        assert mode == 0o600 if name.endswith(".key") else mode & 0o133 == 0
    source = alternatives(folder, "source")
    assert source.get_values_for_type(x509.DNSName) == ["erp.example"]
    assert source.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7"), ip_address("::1")]
    uris = alternatives(folder, "warehouse").get_values_for_type(x509.UniformResourceIdentifier)
    assert uris == ["spiffe://driftline/warehouse/lake"]
    purposes = {
        "source": ExtendedKeyUsageOID.SERVER_AUTH,
        "warehouse": ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    authority = certificate_of(folder, "ca")
    for who, purpose in purposes.items():
        found = certificate_of(folder, who)
        found.verify_directly_issued_by(authority)
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        assert found.not_valid_before_utc <= now < found.not_valid_after_utc <= now + timedelta(90)
        key = found.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    assert authority.not_valid_after_utc > now + timedelta(3600)


def trust_each_other(source: Path, warehouse: Path, name: str = "localhost") -> None:
    """Shake hands as strictly as the standard library can, with the files of two folders."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(source / "ca.pem"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(source / "source.pem", source / "source.key")
    client = ssl.create_default_context(cafile=str(warehouse / "ca.pem"))
    client.load_cert_chain(warehouse / "warehouse.pem", warehouse / "warehouse.key")
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting


def test_the_strict_checks_of_the_standard_library_accept_it(tmp_path: Path) -> None:
    enroll(tmp_path, source_names=["localhost"])
    trust_each_other(tmp_path, tmp_path)


def test_another_source_and_another_warehouse_of_one_authority(tmp_path: Path) -> None:
    first, shop, lake = tmp_path / "certs", tmp_path / "shop", tmp_path / "lake"
    enroll(first, source_names=["localhost"])
    made = enroll(shop, source_names=["shop.example"], authority=first)
    assert sorted(path.name for path in made) == ["ca.pem", "source.key", "source.pem"]
    made = enroll(lake, source_names=[], warehouse_name="lake", authority=first)
    assert sorted(path.name for path in made) == ["ca.pem", "warehouse.key", "warehouse.pem"]
    assert stat.S_IMODE((lake / "warehouse.key").stat().st_mode) == 0o600
    for source, name in ((first, "localhost"), (shop, "shop.example")):
        for warehouse in (first, lake):
            trust_each_other(source, warehouse, name)
    # Into the authority's own folder, when its pairs were moved away: a renewal.
    for name in ("source.pem", "source.key"):
        (first / name).unlink()
    assert len(enroll(first, source_names=["localhost"], authority=first)) == 2
    trust_each_other(first, lake)
    assert not (shop / "ca.key").exists()


def test_an_authority_of_a_company(tmp_path: Path) -> None:
    """RSA, a name of its own for its key, and near its end: as openssl makes it."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ACME root")])
    now = datetime.now(UTC)
    ends = now.replace(microsecond=0) + timedelta(days=30)
    usage = [n == "key_cert_sign" for n in KEY_USAGES]
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(7).not_valid_before(now - timedelta(1)).not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(b"acme"), critical=False)
        .add_extension(x509.KeyUsage(*usage), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    acme = tmp_path / "acme"
    acme.mkdir()
    (acme / "ca.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (acme / "ca.key").touch(0o600)
    (acme / "ca.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    both = tmp_path / "both"
    enroll(both, source_names=["localhost"], warehouse_name="lake", authority=acme)
    trust_each_other(both, both)
    for who in ("source", "warehouse"):
        assert certificate_of(both, who).not_valid_after_utc == ends


def test_an_authority_that_cannot_sign(tmp_path: Path) -> None:
    """Each remedy leads on: what is wrong next, until nothing is."""
    good, new = tmp_path / "good", tmp_path / "new"
    enroll(good, source_names=["localhost"], now=datetime(2026, 1, 1, tzinfo=UTC))
    folder = tmp_path / "authority"

    def refused(**options: Any) -> str:
        arguments = {"source_names": ["localhost"], "authority": folder, **options}
        with pytest.raises((ConfigurationError, UsageError)) as caught:
            enroll(new, **arguments)
        assert not new.exists()
        assert caught.value.remedy
        return str(caught.value)

    assert "Add --source-name HOST" in refused(source_names=[])
    assert f"{folder}/ca.pem cannot be read" in refused()
    shutil.copytree(good, folder)
    (folder / "ca.key").chmod(0o644)
    assert f"Run: chmod 600 {folder}/ca.key" in refused()
    (folder / "ca.key").chmod(0o600)
    key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    sealed = BestAvailableEncryption(b"secret")
    (folder / "ca.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    assert "has a passphrase" in refused()
    shutil.copy(good / "source.key", folder / "ca.key")
    assert "is not the key of" in refused()
    shutil.copy(good / "source.pem", folder / "ca.pem")
    assert "is not the certificate of an authority" in refused()
    (folder / "ca.key").write_text("mine")
    assert "is no private key" in refused()
    (folder / "ca.pem").write_text("mine")
    assert "is no certificate" in refused()
    assert "expired on 2035-12-" in refused(authority=good, now=datetime(2036, 1, 1, tzinfo=UTC))
    new.mkdir()
    (new / "ca.pem").write_text("another")
    with pytest.raises(UsageError, match=r"ca\.pem in .* would be overwritten"):
        enroll(new, source_names=["localhost"], authority=good)
    assert [path.name for path in new.iterdir()] == ["ca.pem"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "source.key").write_text("mine")
    (tmp_path / "ca.pem").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError) as caught:
        enroll(tmp_path, source_names=["localhost"])
    assert "ca.pem, source.key" in caught.value.message
    assert (tmp_path / "source.key").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source_names": []}, "at least one"),
        ({"source_names": ["http://erp"]}, "neither"),
        ({"source_names": ["erp:7443"]}, "neither"),
        ({"source_names": ["x"], "warehouse_name": "a/b"}, "not a name"),
        ({"source_names": ["x"], "days": 0}, "0 days"),
        ({"source_names": ["x"], "days": 4000}, "4000 days"),
    ],
)
def test_what_is_refused_writes_nothing(
    tmp_path: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        enroll(tmp_path, **options)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        enroll(tmp_path / "file", source_names=["x"])


@pytest.mark.starts
def test_without_cryptography_the_remedy_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from source_agent.cli.main import main\n"
        f"sys.argv = ['driftline-source', 'enroll', '--directory', {str(tmp_path)!r}, "
        "'--source-name', 'x']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "pip install 'driftline[enroll]'" in done.stderr
    assert "Traceback" not in done.stderr

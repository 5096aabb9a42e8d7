"""Enrolling: the files, their modes and names, and that real TLS accepts them."""

from __future__ import annotations

import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from driftline.errors import ConfigurationError, UsageError

from source_agent.cli.enroll import enroll

NAMES = ["ca.pem", "ca.key", "source.pem", "source.key", "warehouse.pem", "warehouse.key"]


def certificate(folder: Path, who: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{who}.pem").read_bytes())


def alternatives(folder: Path, who: str) -> x509.SubjectAlternativeName:
    return (
        certificate(folder, who)
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
    authority = certificate(folder, "ca")
    for who, purpose in purposes.items():
        found = certificate(folder, who)
        found.verify_directly_issued_by(authority)
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [purpose]
        assert found.not_valid_before_utc <= now < found.not_valid_after_utc <= now + timedelta(90)
        key = found.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
    assert authority.not_valid_after_utc > now + timedelta(3600)


def test_the_strict_checks_of_the_standard_library_accept_it(tmp_path: Path) -> None:
    enroll(tmp_path, source_names=["localhost"])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(tmp_path / "source.pem", tmp_path / "source.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.load_cert_chain(tmp_path / "warehouse.pem", tmp_path / "warehouse.key")
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
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

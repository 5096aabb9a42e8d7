"""Who is let have a relation: the names of a certificate, exactly, over real mutual TLS."""

from __future__ import annotations

import ipaddress
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError
from driftline.wire_pb2_grpc import SourceStub

from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.harness.agents import channel, configuration, make_orders
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

pytestmark = pytest.mark.starts

LAKE = "spiffe://driftline/warehouse/lake"
Certify = Callable[..., Path]


@pytest.fixture
def certify(tmp_path: Path) -> Certify:
    """Makes a folder like that of `enroll`, with a client certificate of the same authority."""
    certs = tmp_path / "certs"
    enroll(certs, source_names=["127.0.0.1"])
    authority = x509.load_pem_x509_certificate((certs / "ca.pem").read_bytes())
    signing = serialization.load_pem_private_key((certs / "ca.key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)

    def make(common_name: str, names: Sequence[x509.GeneralName] = ()) -> Path:
        folder = tmp_path / "client"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(certs, folder)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        )
        if names:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = built.sign(signing, hashes.SHA256())
        (folder / "warehouse.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        (folder / "warehouse.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return folder

    return make


@pytest.fixture
def published(
    tmp_path: Path,
    certify: Certify,  # noqa: ARG001 - it makes the certificates of the server
) -> Iterator[Callable[[Path], list[str]]]:
    """What is published to the client of a folder, `open` to all."""
    make_orders(tmp_path / "erp.db", [(1, "one")])
    allowed = {
        "uri": LAKE,
        "dns": "lake.example",
        "cn": "lake",
        "ip": "192.0.2.7",
        "email": "lake@lake.example",
        "nobody": None,  # an empty list
    }
    relations = '[relations.open]\ntable = "orders"\n' + "".join(
        f'[relations.{name}]\ntable = "orders"\nallow = {json.dumps([entry] if entry else [])}\n'
        for name, entry in allowed.items()
    )
    config = configuration(
        tmp_path, tmp_path / "erp.db", certs=tmp_path / "certs", relations=relations
    )
    with ExitStack() as stack:
        server = start(config)
        stack.callback(server.stop)

        def ask(folder: Path) -> list[str]:
            with channel(server.port, folder) as over:
                stub = SourceStub(over)
                found = list(stub.Describe(pb.DescribeRequest(protocol=1), timeout=10).relations)
                for name in allowed:  # what is not listed is not described either
                    request = pb.DescribeRequest(protocol=1, relation=name)
                    if name not in found:
                        with pytest.raises(grpc.RpcError) as caught:
                            stub.Describe(request, timeout=10)
                        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
                    else:
                        stub.Describe(request, timeout=10)
            return found

        yield ask


URI, DNS = x509.UniformResourceIdentifier, x509.DNSName


@pytest.mark.parametrize(
    ("common_name", "names", "found"),
    [
        ("anybody", [URI(LAKE)], ["open", "uri"]),
        ("anybody", [DNS("lake.example")], ["open", "dns"]),
        ("anybody", [DNS("lake.example"), URI(LAKE)], ["open", "uri", "dns"]),
        ("lake", [], ["open"]),  # a common name names nobody
        (LAKE, [], ["open"]),
        ("lake.example", [URI("spiffe://driftline/warehouse/other")], ["open"]),
        ("anybody", [URI(LAKE + "2")], ["open"]),
        ("anybody", [URI(LAKE + "/more")], ["open"]),
        ("anybody", [URI(LAKE[:-1])], ["open"]),
        ("anybody", [URI(LAKE.upper())], ["open"]),
        ("anybody", [DNS("x.lake.example"), DNS("*.example"), DNS("lake.example.org")], ["open"]),
        ("anybody", [x509.IPAddress(ipaddress.ip_address("192.0.2.7"))], ["open"]),
        ("anybody", [x509.RFC822Name("lake@lake.example")], ["open"]),
    ],
)
def test_names_match_exactly(
    certify: Certify,
    published: Callable[[Path], list[str]],
    common_name: str,
    names: list[x509.GeneralName],
    found: list[str],
    tmp_path: Path,
) -> None:
    assert published(certify(common_name, names)) == found
    line = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])
    uris = [n.value for n in names if isinstance(n, URI)]
    hosts = [n.value for n in names if isinstance(n, DNS)]
    assert line["client"] == (uris + hosts + [f"CN={common_name}"])[0]


def test_keys_that_others_can_read_are_refused(tmp_path: Path, certify: Certify) -> None:
    folder = certify("anybody", [URI(LAKE)])
    make_orders(tmp_path / "erp.db", [(1, "one")])
    config = configuration(tmp_path, tmp_path / "erp.db", certs=folder)
    (folder / "source.key").chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"server\.key: The key .* is open to others"):
        start(config)
    files = [folder / name for name in ("ca.pem", "warehouse.pem", "warehouse.key")]
    source = Source("erp", "127.0.0.1:1", ca=files[0], certificate=files[1], key=files[2])
    files[2].chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"sources\.erp\.key: The key .* is open to"):
        SourceChannel(source)
    files[2].chmod(0o600)
    with SourceChannel(source):
        pass


def test_a_renewed_key_that_others_can_read_is_not_used(
    tmp_path: Path, certify: Certify, caplog: pytest.LogCaptureFixture
) -> None:
    folder = certify("anybody", [URI(LAKE)])
    make_orders(tmp_path / "erp.db", [(1, "one")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=folder))
    try:
        (folder / "source.key").chmod(0o644)
        with channel(server.port, folder) as over:
            SourceStub(over).Describe(pb.DescribeRequest(protocol=1), timeout=10)
        assert "source.key is open to others than its owner (mode 0644)" in caplog.text
    finally:
        server.stop()

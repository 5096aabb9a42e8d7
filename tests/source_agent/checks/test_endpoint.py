"""`check` of [server], with real certificates and real sockets."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from driftline.errors import MalformedMessage
from driftline.x509 import read_pem

from source_agent.checks.endpoint import EndpointReport, examine
from source_agent.config.file import load
from source_agent.enrolment import enroll
from source_agent.server.service import start
from tests.harness import forks
from tests.harness.agents import configuration, make_orders
from tests.harness.forks import SOURCE
from tests.harness.pair import environment

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    names = ["localhost", "127.0.0.1", "::1"]
    enroll(folder, source_names=names, days=90, now=NOW)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_orders(tmp_path / "erp.db", [(1, "a")])
    configuration(tmp_path, tmp_path / "erp.db", certs=None)
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*SOURCE, *arguments], cwd=folder, env=environment(), timeout=60)


def settings(
    folder: Path, certs: Path | None, listen: str = "127.0.0.1:0", now: datetime = NOW
) -> dict[str, EndpointReport]:
    """What `check` finds of [server], by setting."""
    config = configuration(folder, folder / "erp.db", certs=certs)
    text = config.path.read_text().replace("127.0.0.1:0", listen)
    config.path.write_text(text)
    return {found.what: found for found in examine(load(config.path), now=now)}


# Certificates


def test_a_certificate_is_read_as_cryptography_reads_it(certs: Path) -> None:
    for name in ("ca", "source", "warehouse"):
        data = (certs / f"{name}.pem").read_bytes()
        found, theirs = read_pem(data), x509.load_pem_x509_certificate(data)
        assert (found.begins, found.ends) == (
            theirs.not_valid_before_utc,
            theirs.not_valid_after_utc,
        )
    assert read_pem((certs / "source.pem").read_bytes()).names == ("localhost", "127.0.0.1", "::1")
    uri = "spiffe://driftline/warehouse/warehouse"
    assert read_pem((certs / "warehouse.pem").read_bytes()).names == (uri,)
    assert read_pem((certs / "ca.pem").read_bytes()).names == ()
    pem = (certs / "source.pem").read_bytes()
    for data in (b"", b"no certificate", pem[:200] + pem[-26:], pem[:60] + pem[80:]):
        with pytest.raises(MalformedMessage):
            read_pem(data)


def test_good_certificates_and_a_free_port(folder: Path, certs: Path) -> None:
    found = settings(folder, certs, now=NOW + timedelta(days=10))
    assert not any(report.problem for report in found.values())
    assert found["listen"].text.endswith("is free")
    assert "for localhost, 127.0.0.1, ::1; valid until 2026-08-" in found["certificate"].text
    assert found["certificate"].text.endswith("days left")
    soon = settings(folder, certs, now=NOW + timedelta(days=70))
    assert not soon["certificate"].problem
    assert "RENEW IT SOON" in soon["certificate"].text


@pytest.mark.parametrize(
    ("days", "says"), [(91, "has expired"), (-2, "is not valid yet")], ids=["expired", "early"]
)
def test_a_certificate_outside_its_dates(folder: Path, certs: Path, days: int, says: str) -> None:
    found = settings(folder, certs, now=NOW + timedelta(days=days))
    assert found["certificate"].problem
    assert says in found["certificate"].text
    assert "2026-05-31 to 2026-08-" in found["certificate"].text
    assert not found["certificates"].problem


@pytest.mark.slow
def test_certificates_that_do_not_fit_or_are_not_there(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    enroll(own, source_names=["localhost"])
    (own / "source.key").write_bytes((own / "warehouse.key").read_bytes())
    found = settings(folder, own)
    assert found["certificates"].problem
    assert "does not go with its key" in found["certificates"].text
    (own / "source.key").unlink()
    found = settings(folder, own)
    assert "source.key cannot be read" in found["certificates"].text
    done = command(folder, "check")
    assert done.returncode == 1, done
    assert "\n[server] has 1 problem: " in done.stdout
    assert done.stdout.endswith("\n1 of 1 relation can be served\n")
    report = json.loads(command(folder, "check", "--json").stdout)
    assert (report["ok"], report["served"]) == (False, 1)
    assert [found["what"] for found in report["server"] if found["problem"]] == ["certificates"]


# The address


@pytest.mark.starts
@pytest.mark.parametrize("is_tls", [True, False], ids=["tls", "plain"])
def test_a_running_agent_is_no_problem_and_a_stranger_is(
    folder: Path, certs: Path, tmp_path: Path, is_tls: bool
) -> None:
    chosen = certs if is_tls else None
    config = configuration(folder, folder / "erp.db", certs=chosen)
    server = start(config)
    try:
        found = settings(folder, chosen, f"127.0.0.1:{server.port}")["listen"]
        assert (found.problem, "listens" in found.text) == (False, True)
        other = tmp_path / "others"
        enroll(other, source_names=["localhost"])
        if is_tls:  # another agent's
            assert settings(folder, other, f"127.0.0.1:{server.port}")["listen"].problem
    finally:
        server.stop()
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        taken = stranger.getsockname()[1]
        if is_tls:  # in plain text gRPC would wait for its answer
            hangs_up(stranger)
            found = settings(folder, chosen, f"127.0.0.1:{taken}")["listen"]
            assert found.problem
            assert "Something that is not this agent" in found.text


def hangs_up(listening: socket.socket) -> None:
    """Accept one line and close it at once, in a thread of its own."""
    listening.settimeout(20)

    def accept() -> None:
        listening.accept()[0].close()

    Thread(target=accept, daemon=True).start()


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("192.0.2.1:7443", "not an address of this machine"),
        ("no.such.host.invalid:7443", "not known"),
    ],
)
def test_an_address_that_is_none_of_ours(folder: Path, certs: Path, listen: str, says: str) -> None:
    found = settings(folder, certs, listen)["listen"]
    assert found.problem
    assert says in found.text


@pytest.mark.starts
def test_a_database_that_is_away_does_not_hide_the_server(folder: Path, certs: Path) -> None:
    settings(folder, certs, "192.0.2.1:7443")
    (folder / "erp.db").unlink()
    done = command(folder, "check")
    assert done.returncode == 4
    assert "server.listen: It is not possible to listen on 192.0.2.1:7443" in done.stderr

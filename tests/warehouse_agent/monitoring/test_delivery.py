"""Messages to real receivers and real programs: what arrives, and what is said when none does."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError

from source_agent.enrolment import enroll
from tests.harness.receiver import Receiver, is_signed, receiving
from warehouse_agent.config.notify import read_address
from warehouse_agent.config.settings import SecretAddress
from warehouse_agent.monitoring import delivery
from warehouse_agent.monitoring.delivery import to_address, to_program
from warehouse_agent.monitoring.messages import NotDelivered

TIMEOUT_S = 0.5
LIMIT_S = 10.0
BODY = b'{"text": "a"}'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    enroll(folder, source_names=["127.0.0.1"])
    return folder


@pytest.fixture
def secure(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver by https, whose authority this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    with receiving(certificates) as receiver:
        yield receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def why_not(url: str, body: bytes | None = BODY) -> str:
    """Why a message did not arrive, which took less than a second more than its time."""
    began = time.monotonic()
    with pytest.raises(NotDelivered) as failed:
        to_address(url, body, TIMEOUT_S)
    assert time.monotonic() - began < TIMEOUT_S + 1
    return str(failed.value)


def test_a_message_arrives_by_https(secure: Receiver) -> None:
    assert to_address(secure.url, BODY, LIMIT_S) == "127.0.0.1 answered 200"
    (request,) = secure.requests
    assert (request.method, request.path, request.body) == ("POST", "/hook", BODY)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("driftline/")


def test_a_heartbeat_is_fetched(receiver: Receiver) -> None:
    to_address(receiver.url, None, LIMIT_S)
    assert [(one.method, one.body) for one in receiver.requests] == [("GET", b"")]


def test_an_authority_that_is_not_trusted_is_refused(certificates: Path) -> None:
    with receiving(certificates) as untrusted:
        assert why_not(untrusted.url).startswith("127.0.0.1: its certificate is refused: ")
        assert not untrusted.requests


def test_a_certificate_of_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(tmp_path, source_names=["chat.example.com"])
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with receiving(tmp_path) as other:
        assert "its certificate is refused" in why_not(other.url)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_answer_that_refuses_is_named(receiver: Receiver, status: int) -> None:
    receiver.answer = status
    assert why_not(receiver.url) == f"127.0.0.1 answered {status}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [BODY, None])
def test_no_redirect_is_followed(receiver: Receiver, status: int, body: bytes | None) -> None:
    receiver.answer = status
    with receiving() as other:
        receiver.location = other.url
        why = f"127.0.0.1 answered {status}; redirects are not followed"
        assert why_not(receiver.url, body) == why
        assert not other.requests


def test_who_hangs_is_left_in_time(receiver: Receiver) -> None:
    receiver.answer = 0
    assert why_not(receiver.url) == "127.0.0.1: no answer in 0.5 s"


def test_who_takes_no_connection_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert why_not(f"https://127.0.0.1:{port}/") == "127.0.0.1: no answer in 0.5 s"
    assert why_not(f"http://127.0.0.1:{port}/secret") == "127.0.0.1: Connection refused"


def test_who_speaks_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret"

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                line.sendall(b"220 mail.example.com ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert why_not(url) == "127.0.0.1: no answer of HTTP (BadStatusLine)"
        thread.join()


@pytest.mark.parametrize(
    ("head", "again"),
    [(b"", b"H"), (b"HTTP/1.1 200 OK\r\nX: ", b"x"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
    ids=["the status", "a header", "more to come"],
)
def test_who_answers_byte_by_byte_is_left_in_time(head: bytes, again: bytes) -> None:
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/secret"

        def answer() -> None:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                line.recv(65536)
                line.sendall(head)
                while not is_over.wait(0.05):
                    line.sendall(again)

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        if head:  # which has said that it took the message
            assert to_address(url, BODY, TIMEOUT_S) == "127.0.0.1 answered 200"
        else:
            with pytest.raises(NotDelivered, match=r"^127.0.0.1: no answer of HTTP"):
                to_address(url, BODY, TIMEOUT_S)
        assert time.monotonic() - began < TIMEOUT_S * delivery.ANSWER_TIMES + 1
        is_over.set()
        thread.join()


def test_an_answer_without_end_is_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        sent = []

        def answer() -> None:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                line.recv(65536)
                line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    sent.append(line.send(b"x" * 65536))

        thread = threading.Thread(target=answer)
        thread.start()
        assert to_address(url, BODY, LIMIT_S) == "127.0.0.1 answered 200"
        thread.join()
        assert sum(sent) < 64 << 20


def test_a_proxy_of_the_environment_is_asked_for_other_machines_alone(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        proxy.answer = 501
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
        monkeypatch.delenv("no_proxy", raising=False)
        to_address(receiver.url, BODY, LIMIT_S)
        assert (len(receiver.requests), len(proxy.requests)) == (1, 0)
        why_not("https://chat.example.invalid/secret")
        assert len(receiver.requests) == 1


def test_a_signature_is_checked_by_a_receiver(receiver: Receiver, tmp_path: Path) -> None:
    key = tmp_path / "hook.key"
    key.write_text("a key\n")
    key.chmod(0o600)
    signed = delivery.signature(key, "here", BODY, time.time())
    to_address(receiver.url, BODY, LIMIT_S, signed)
    (request,) = receiver.requests
    assert is_signed(request, b"a key")
    assert not is_signed(request, b"another key")
    assert not is_signed(request, b"a key", time.time() + 3600), "a replay is found"
    changed = type(request)(request.method, request.path, request.headers, b"{}")
    assert not is_signed(changed, b"a key")


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hook.url"
    file.write_text("https://chat.example.com/secret\n")
    one = SecretAddress(None, file, "here")
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="is open to others"):
        read_address(one)
    file.chmod(0o600)
    assert read_address(one) == "https://chat.example.com/secret"
    for wrong in ("", "chat.example.com/secret", "http://chat.example.com/secret"):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError) as refused:
            read_address(one)
        assert "secret" not in str(refused.value)
    file.write_text("")
    with pytest.raises(ConfigurationError, match="is empty"):
        delivery.signature(file, "here", BODY, 0.0)


def python(folder: Path, text: str, timeout_s: float = LIMIT_S, body: bytes = BODY) -> str:
    return to_program([sys.executable, "-c", text], body, timeout_s, folder)


@pytest.mark.starts
def test_a_program_gets_the_message_in_its_folder(tmp_path: Path) -> None:
    copy = "import sys; open('said', 'wb').write(sys.stdin.buffer.read())"
    assert python(tmp_path, copy).endswith(" ended with 0")
    assert (tmp_path / "said").read_bytes() == BODY


@pytest.mark.starts
def test_arguments_are_no_shells(tmp_path: Path) -> None:
    to_program(["/bin/echo", "$(touch broken); `touch broken`"], BODY, LIMIT_S, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.starts
def test_what_a_failing_program_said_last_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotDelivered, match=r" ended with 3: no such user \\x1b$"):
        python(tmp_path, r"import sys; print('a\nno such user \x1b', file=sys.stderr); sys.exit(3)")
    with pytest.raises(NotDelivered, match=r"^nowhere does not start: No such file"):
        to_program(["/nowhere", "secret"], BODY, LIMIT_S, tmp_path)


@pytest.mark.starts
def test_a_program_that_writes_without_end_fills_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    endless = "import os\nwhile True: os.write({}, b'no\\n' * 20000)"
    for number in (1, 2):
        with pytest.raises(NotDelivered, match=r"did not end in 1 s, and was killed"):
            python(tmp_path, endless.format(number), 1.0)
    assert time.monotonic() - began < LIMIT_S
    python(tmp_path, "import os, stat\nassert stat.S_ISFIFO(os.fstat(2).st_mode)")
    many = (
        "import os\nfor _ in range(100): os.write(2, b'no\\n' * 20000)\nos.write(2, b'at last')\n"
    )
    with pytest.raises(NotDelivered, match=r"ended with 3: at last$"):
        python(tmp_path, f"{many}os._exit(3)")


@pytest.mark.starts
def test_a_program_that_reads_nothing_is_told_if_it_ends_well(tmp_path: Path) -> None:
    assert python(tmp_path, "", body=b"x" * 1_000_000)


HANGS = """
import os, time
child = os.fork()
if child:
    open("pids", "w").write(f"{os.getpid()} {child}")
time.sleep(60)
"""


@pytest.mark.starts
@pytest.mark.parametrize("body", [BODY, b"x" * 1_000_000], ids=["short", "long"])
def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, body: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(NotDelivered, match=r"did not end in 2 s, and was killed"):
        python(tmp_path, HANGS, 2.0, body)
    assert time.monotonic() - began < LIMIT_S
    for pid in (tmp_path / "pids").read_text().split():
        until = time.monotonic() + LIMIT_S
        while _lives(int(pid)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not _lives(int(pid))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.starts
def test_a_child_that_is_left_behind_is_no_reason_to_wait(tmp_path: Path) -> None:
    leaves = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n"
    began = time.monotonic()
    python(tmp_path, leaves)
    assert time.monotonic() - began < LIMIT_S
    assert os.listdir(tmp_path) == []

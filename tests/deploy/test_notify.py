"""The example that mails notifications: a message of ours becomes a mail that is well formed."""

from __future__ import annotations

import email
import os
import re
import sys
from email import policy
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests import ROOT
from warehouse_agent.config.settings import MessageFormat
from warehouse_agent.monitoring.delivery import to_program
from warehouse_agent.monitoring.messages import Message, NotDelivered, grouped
from warehouse_agent.monitoring.told_states import Event, ToldKind

MAIL = ROOT / "deploy" / "notify" / "mail.py"
LIMIT_S = 20.0
# As sendmail: -i: a line with a dot alone ends nothing; -t: who gets it stands in the head.
SENDMAIL = """#!/bin/sh
[ "$*" = "-i -t" ] || exit 64
cat > mail
exit "${SENDMAIL_CODE:-0}"
"""
COLUMN = "größe\u2028\r\nBcc: all@example.com"


@pytest.fixture
def sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "sendmail"
    program.write_text(SENDMAIL)
    program.chmod(0o755)
    monkeypatch.setenv("SENDMAIL", str(program))
    return tmp_path / "mail"


def send(folder: Path, *events: Event) -> Message:
    told = Message("/srv/warehouse", 0.0, grouped(events))
    argv = [sys.executable, str(MAIL), "data-team@example.com", "boss@example.com"]
    to_program(argv, told.body(MessageFormat.JSON), LIMIT_S, folder)
    return told


def test_a_mail_is_well_formed(sendmail: Path, tmp_path: Path) -> None:
    """By RFC 5322: fields once, lines of at most 998 bytes, all of them ASCII."""
    failed = Event(ToldKind.FAILED, "orders", 0.0, "erp", "VALUE", COLUMN, "Look. " * 60)
    told = send(tmp_path, failed, Event(ToldKind.RECOVERED, "lines", 0.0))
    data = sendmail.read_bytes()
    assert all(len(line) <= 998 for line in data.split(b"\n"))
    assert data.isascii()
    mail = email.message_from_bytes(data, policy=policy.default)
    assert isinstance(mail, EmailMessage)
    assert not mail.defects
    names = [name.lower() for name in mail]
    assert len(names) == len(set(names))
    assert {"from", "to", "date", "subject", "message-id"} <= {*names}
    assert "bcc" not in names
    assert [one.addr_spec for one in mail["To"].addresses] == [
        "data-team@example.com", "boss@example.com",
    ]  # fmt: skip
    assert parsedate_to_datetime(mail["Date"]).tzinfo is not None
    assert re.fullmatch(r"<[^<>@\s]+@[^<>@\s]+>", mail["Message-ID"])
    assert mail["Subject"] == told.title
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content().rstrip("\n").split("\n") == told.lines


@pytest.mark.usefixtures("sendmail")
def test_a_mail_that_is_refused_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDMAIL_CODE", "75")
    with pytest.raises(NotDelivered, match=" ended with 75"):
        send(tmp_path, Event(ToldKind.RECOVERED, "lines", 0.0))


def test_the_example_needs_no_driftline() -> None:
    """It runs by the system's Python."""
    imported = re.findall(r"^(?:import|from) (\w+)", MAIL.read_text(), re.M)
    assert set(imported) <= sys.stdlib_module_names
    assert os.access(MAIL, os.R_OK)

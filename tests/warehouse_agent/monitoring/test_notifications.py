"""Who is told what after commands: failures, recoveries, overdue tables, killed commands."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from driftline.errors import (
    CommandKilled,
    ConfigurationError,
    DriftlineError,
    DuplicateKey,
    NotNow,
    RecipeChanged,
    SourceUnreachable,
    TableShrank,
    ValueDoesNotFit,
    ViewFailed,
)

from tests.harness.counted_requests import RequestCounter
from tests.harness.object_stores import Moto
from tests.harness.receiver import Receiver, check_slack, is_signed, receiving
from warehouse_agent.cli.main import cli
from warehouse_agent.config import WarehouseConfig, load
from warehouse_agent.history import command_records, refresh_history
from warehouse_agent.history.command_records import CommandRecord
from warehouse_agent.monitoring import notifications, tellers
from warehouse_agent.monitoring.after_command import WAIT_S, AfterCommand, EndedCommand
from warehouse_agent.monitoring.messages import Message, NotDelivered
from warehouse_agent.monitoring.notifications import Notifier
from warehouse_agent.monitoring.told_states import CLAIM_S, Told
from warehouse_agent.report import Report, utc_at
from warehouse_agent.storage.store import PRIVATE, Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SECRET = "4711 Evelyn"  # a value of a row

Made = Callable[..., WarehouseConfig]
Told_ = list[tuple[str, str]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Make a configuration of `orders`, hourly, and `lines`, without a timing."""

    def make(notify: str = "", more: str = "") -> WarehouseConfig:
        file = tmp_path / "warehouse.toml"
        file.write_text(
            '[warehouse]\npath = "warehouse"\nfreshness_table = false\n'
            '[sources.erp]\naddress = "127.0.0.1:9"\n'
            'insecure = true\n[fragments.orders]\nsource = "erp"\ninterval_max = "1h"\n'
            f'[fragments.lines]\nsource = "erp"\n{more}\n[notify]\n{notify}\n'
        )
        return load(file)

    return make


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def well(name: str = "orders", **more: Any) -> Report:
    return Report(name, version=3, previous_version=2, checked_at=utc_at(NOW.timestamp()), **more)


def failed(error: DriftlineError, name: str = "orders") -> Report:
    report = Report(name, version=3, previous_version=3)
    report.fail(error)
    return report


def down() -> SourceUnreachable:
    return SourceUnreachable("Nobody listens.", remedy="Start the agent.")


def ended(
    config: WarehouseConfig, *reports: Report, at: datetime = NOW, **more: Any
) -> EndedCommand:
    store = Store.of(config)
    for report in reports:
        refresh_history.append(store, report.name, report.to_json())
    return EndedCommand(config, store, reports, at, **more)


def tell(command: EndedCommand) -> list[str]:
    """Tell everybody of a command; return the warnings."""
    said: list[str] = []
    AfterCommand(tellers.of)(command, said.append)
    return said


def test_a_webhook_is_told_once_a_state(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"')
    commands: Sequence[tuple[Report, ...]] = [
        (well(), well("lines")),
        (failed(down()), well("lines")),
        (failed(down()), failed(TableShrank("Gone."), "lines")),
        (failed(down()),),
        (well(), failed(TableShrank("Gone."), "lines")),
        (well(), well("lines")),
        (well(), well("lines")),
    ]
    told: list[Told_] = []
    for number, reports in enumerate(commands):
        before = len(receiver.events)
        assert not tell(ended(config, *reports, at=NOW + number * timedelta(minutes=5)))
        told.append(receiver.events[before:])
    assert told == [
        [],
        [("failed", "orders")],
        [("shrank", "lines")],
        [],
        [("recovered", "orders")],
        [("recovered", "lines")],
        [],
    ]
    assert len(receiver.requests) == 4, "one request a command that has something to tell"


def test_nothing_is_told_where_nobody_is_named(made: Made) -> None:
    config = made()
    assert not tellers.of(config)
    assert not tell(ended(config, failed(down())))
    assert not (Path(config.path) / PRIVATE / notifications.FOLDER).exists()


ERRORS: Sequence[tuple[DriftlineError, str, str | None]] = [
    (DuplicateKey(f"Two rows have {SECRET}.", details={"key": SECRET}), "failed", None),
    (ValueDoesNotFit(f"{SECRET} is no date.", where="orders.o_date"), "failed", "o_date"),
    (ViewFailed(f"Division by zero in {SECRET}.", where="orders"), "failed", None),
    (TableShrank(f"Gone: {SECRET}."), "shrank", None),
]


@pytest.mark.parametrize(("error", "event", "column"), ERRORS)
@pytest.mark.parametrize("form", ["json", "slack", "teams"])
def test_no_value_is_told_unless_it_is_asked_for(
    made: Made, receiver: Receiver, error: DriftlineError, event: str, column: str | None, form: str
) -> None:
    lines = f'webhook = "{receiver.url}"\nformat = "{form}"'
    tell(ended(made(lines), failed(error)))
    config = made(f"{lines}\nvalues = true")
    tell(ended(config, well()))
    tell(ended(config, failed(error)))
    without, recovered, with_values = receiver.requests
    assert SECRET.encode() not in without.body + recovered.body
    assert SECRET.encode() in with_values.body
    kept = (Path(config.path) / PRIVATE / notifications.FOLDER / "webhook.json").read_text()
    assert SECRET not in kept, "it was delivered"
    if form == "json":
        (told,) = without.json["events"]
        assert (told["event"], told["column"], told["code"]) == (event, column, error.code)


def test_changed_columns_are_told_by_name(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"')
    changes = ["column note (text) was added", "column a was dropped"]
    details = {f"change {number}": text for number, text in enumerate(changes)}
    tell(ended(config, failed(RecipeChanged("It changed.", remedy="Accept.", details=details))))
    tell(ended(config, well(schema_changed=True, schema_changes=changes)))
    refused, accepted = (request.json["events"] for request in receiver.requests)
    assert [(one["event"], one["changes"], one["version"]) for one in refused] == [
        ("schema_changed", changes, None)
    ]
    assert [(one["event"], one["changes"], one["version"]) for one in accepted] == [
        ("schema_changed", changes, 3),
        ("recovered", [], None),
    ]


def test_what_a_source_puts_off_is_no_failure(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"\nheartbeat = "{receiver.url}"')
    until = (datetime.now(UTC) + HOUR).isoformat()
    put_off = failed(NotNow("Quiet hours.", details={"quiet until": until}))
    assert put_off.put_off_until is not None
    tell(ended(config, put_off, at=datetime.now(UTC)))
    assert [request.method for request in receiver.requests] == ["GET"], "the heartbeat alone"


def test_a_heartbeat_is_of_commands_that_went_well(made: Made, receiver: Receiver) -> None:
    config = made(f'heartbeat = "{receiver.url}"')
    for command in (
        ended(config, well(), failed(down(), "lines")),
        ended(config, Report("orders", not_started="The deadline.")),
        ended(config, others_failed=True),
    ):
        assert not tell(command)
        assert not receiver.requests
    assert not tell(ended(config, well()))
    assert not tell(ended(config))
    assert len(receiver.requests) == 2


def test_a_killed_command_is_told_by_the_next_one(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"')
    record = CommandRecord("r", 0.0, "pid 7", ("orders", "lines"), 1.0, {}, is_running=False)
    killed = [(record, ["orders", "lines"])]
    tell(ended(config, well(), killed=killed))
    first, second = receiver.requests[0].json["events"]
    assert (first["event"], first["code"], first["tables"]) == (
        "failed", CommandKilled.code, ["orders", "lines"],
    )  # fmt: skip
    assert first["remedy"] == CommandKilled.default_remedy
    assert (second["event"], second["tables"]) == ("recovered", ["orders"])


def test_a_view_that_stays_behind_is_stale(made: Made, receiver: Receiver) -> None:
    view = '[views.sums]\nquery = "SELECT o.id FROM orders o"'
    config = made(f'webhook = "{receiver.url}"', view)
    behind = Report("sums", stale="orders failed", not_started="It stays as it is.")
    for _ in range(2):
        tell(ended(config, behind))
    tell(ended(config, well("sums")))
    assert receiver.events == [("stale", "sums"), ("recovered", "sums")]


def test_an_overdue_table_is_told_by_a_command_that_did_not_touch_it(
    made: Made, receiver: Receiver
) -> None:
    config = made(f'webhook = "{receiver.url}"')
    tell(ended(config, well()))
    for hours in (1.0, 1.4, 1.6, 2.0):
        tell(ended(config, well("lines"), at=NOW + hours * HOUR))
        assert receiver.events == ([("stale", "orders")] if hours > 1.5 else [])
    tell(ended(config, well(), at=NOW + 3 * HOUR))
    assert receiver.events == [("stale", "orders"), ("recovered", "orders")]


def test_a_clock_that_was_ahead_hides_no_overdue_table(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"')
    tell(ended(config, well(), at=NOW + 5000 * HOUR))
    refresh_history.append(Store.of(config), "orders", well().to_json())
    tell(ended(config, well("lines"), at=NOW + HOUR))
    assert receiver.events == []
    tell(ended(config, well("lines"), at=NOW + 2 * HOUR))
    assert receiver.events == [("stale", "orders")]
    tell(ended(config, well(), at=NOW + 3 * HOUR))
    tell(ended(config, well("lines"), at=NOW + 4 * HOUR))
    assert receiver.events == [("stale", "orders"), ("recovered", "orders")]
    tell(ended(config, well("lines"), at=NOW + 5 * HOUR))
    assert receiver.events[2:] == [("stale", "orders")]


def test_what_another_configuration_refreshed_is_not_overdue(
    made: Made, receiver: Receiver
) -> None:
    config = made(f'webhook = "{receiver.url}"')
    tell(ended(config, well()))
    later = well()
    later.checked_at = utc_at((NOW + 2 * HOUR).timestamp())
    refresh_history.append(Store.of(config), "orders", later.to_json())
    tell(ended(config, well("lines"), at=NOW + 3 * HOUR))
    assert receiver.events == []
    tell(ended(config, well("lines"), at=NOW + 4 * HOUR))
    assert receiver.events == [("stale", "orders")]
    later.checked_at = utc_at((NOW + 4.5 * HOUR).timestamp())
    refresh_history.append(Store.of(config), "orders", later.to_json())
    tell(ended(config, well("lines"), at=NOW + 5 * HOUR))
    assert receiver.events == [("stale", "orders"), ("recovered", "orders")]


def test_a_table_of_before_is_overdue_once_it_is_told(made: Made, receiver: Receiver) -> None:
    refresh_history.append(Store.of(made()), "orders", well().to_json())
    config = made(f'webhook = "{receiver.url}"')
    tell(ended(config, failed(down()), at=NOW + 2 * HOUR))
    assert sorted(receiver.events) == [("failed", "orders"), ("stale", "orders")]


def test_a_table_without_a_timing_or_a_version_is_never_overdue(
    made: Made, receiver: Receiver
) -> None:
    config = made(f'webhook = "{receiver.url}"')
    tell(ended(config, well("lines")))
    tell(ended(config, at=NOW + 1000 * HOUR))
    assert receiver.events == []


@pytest.mark.parametrize("answer", [500, 429, 302, 0])
def test_a_lost_message_is_sent_by_the_next_command(
    made: Made, receiver: Receiver, answer: int
) -> None:
    config = made(f'webhook = "{receiver.url}"\ntimeout = 0.5')
    receiver.answer = answer
    began = time.monotonic()
    (warning,) = tell(ended(config, failed(down())))
    assert time.monotonic() - began < WAIT_S + 0.5
    why = f"127.0.0.1 answered {answer}" if answer else "127.0.0.1: no answer in 0.5 s"
    assert warning.startswith(f"warning: not told of this command: webhook: {why}")
    assert "/hook" not in warning
    receiver.answer = 200
    receiver.requests.clear()
    assert not tell(ended(config, well()))
    assert receiver.events == [("failed", "orders"), ("recovered", "orders")]


@pytest.mark.starts
def test_each_channel_is_told_for_itself(made: Made, receiver: Receiver, tmp_path: Path) -> None:
    copy = "import sys; print(sys.stdin.read(), file=open('said', 'a'))"
    config = made(f'webhook = "{receiver.url}"\ncommand = ["{sys.executable}", "-c", "{copy}"]')
    receiver.answer = 500
    (warning,) = tell(ended(config, failed(down())))
    assert "command: webhook: 127.0.0.1 answered 500. The" in warning
    receiver.answer = 200
    assert not tell(ended(config, failed(down())))
    (said,) = (tmp_path / "said").read_text().splitlines()
    assert json.loads(said)["events"][0]["event"] == "failed"
    assert receiver.events[-1] == ("failed", "orders")
    assert len(receiver.requests) == 2


def test_a_message_is_signed_and_goes_to_a_secret_address(
    made: Made, receiver: Receiver, tmp_path: Path
) -> None:
    for name, text in (("hook.url", receiver.url), ("hook.key", "a key")):
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o600)
    config = made(
        'webhook_file = "hook.url"\nwebhook_secret_file = "hook.key"\nformat = "slack"\n'
        'heartbeat_file = "hook.url"'
    )
    assert not tell(ended(config, failed(down())))
    (request,) = receiver.requests
    assert is_signed(request, b"a key")
    assert "UNREACHABLE" in check_slack(request.json)
    assert receiver.url not in repr(config)
    assert not tell(ended(config, well()))
    assert [one.method for one in receiver.requests[1:]].count("GET") == 1
    (tmp_path / "hook.key").unlink()
    (warning,) = tell(ended(config, failed(down())))
    assert "hook.key cannot be read" in warning


def test_two_commands_at_once_tell_once(made: Made) -> None:
    """The second one begins while the first one sends; a third one sees what is new."""
    config, sent = made('heartbeat = "https://a.example/"'), list[Message]()
    sends, may_end = threading.Event(), threading.Event()

    def slow(message: Message) -> str:
        sent.append(message)
        sends.set()
        assert may_end.wait(10)
        return ""

    def fast(message: Message) -> str:
        sent.append(message)
        return ""

    def told() -> list[list[str]]:
        return [[name for group in one.groups for name in group.tables] for one in sent]

    first = threading.Thread(
        target=Notifier("webhook", slow).tell, args=(ended(config, failed(down())),)
    )
    first.start()
    assert sends.wait(10)
    Notifier("webhook", fast).tell(ended(config, failed(down())))
    assert told() == [["orders"]]
    Notifier("webhook", fast).tell(ended(config, failed(down(), "lines")))
    assert told() == [["orders"], ["lines"]]
    may_end.set()
    first.join()
    Notifier("webhook", fast).tell(ended(config))
    assert told() == [["orders"], ["lines"]]


def test_a_message_of_a_command_that_was_killed_is_sent_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, sent, kept = made(), list[Message](), list[bytes]()
    store, place = Store.of(config), (PRIVATE, notifications.FOLDER, "webhook.json")

    def killed(_: Message) -> str:
        kept.append(store.read(*place) or b"")
        raise SystemExit

    def arrives(message: Message) -> str:
        sent.append(message)
        return ""

    with pytest.raises(SystemExit):
        Notifier("webhook", killed).tell(ended(config, failed(down())))
    store.write(kept[0], *place)
    Notifier("webhook", arrives).tell(ended(config))
    assert not sent, "somebody may send it still"
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment + CLAIM_S + 1)
    Notifier("webhook", arrives).tell(ended(config))
    assert [group.tables for group in sent[0].groups] == [("orders",)]


def test_what_cannot_be_noted_is_told_each_time(made: Made, receiver: Receiver) -> None:
    config = made(f'webhook = "{receiver.url}"')
    Store.of(config).write(b"", PRIVATE, notifications.FOLDER)  # a file where a folder belongs
    for _ in range(2):
        (warning,) = tell(ended(config, failed(down())))
        assert "notified" in warning
    (warning,) = tell(ended(config, well()))
    assert receiver.events == [("failed", "orders")] * 2


def test_a_failure_that_is_told_never_hides_another(made: Made) -> None:
    """Whatever was raised while it was sent, an event is free for the next command."""
    config = made()

    def refuses(_: Message) -> str:
        raise NotDelivered("no")

    for reports in ((failed(down()),), (failed(TableShrank("Gone.")),)):
        with pytest.raises(NotDelivered):
            Notifier("webhook", refuses).tell(ended(config, *reports))
    kept = Store.of(config).read(PRIVATE, notifications.FOLDER, "webhook.json") or b""
    assert [one.claimed_at for one in Told.of_json(kept).waiting] == [None, None]


def test_a_killed_command_leaves_what_the_next_one_tells(made: Made, receiver: Receiver) -> None:
    """From its record in the warehouse to the message."""
    config = made(f'webhook = "{receiver.url}"')
    store = Store.of(config)
    begun = {"began": 10.0, "who": "pid 7", "names": ["orders"], "said": 20.0}
    store.write(json.dumps(begun).encode(), PRIVATE, "commands", "r.jsonl")
    killed = command_records.settle(store, NOW.timestamp())
    tell(replace(ended(config), killed=killed))
    assert receiver.events == [("failed", "orders")]
    assert receiver.requests[0].json["events"][0]["at"] == "1970-01-01T00:00:20Z"


@pytest.mark.starts
def test_a_test_message_says_who_answers(made: Made, receiver: Receiver) -> None:
    config = made(
        f'webhook = "{receiver.url}"\ncommand = ["/bin/false"]\nheartbeat = "{receiver.url}"'
    )
    ran = CliRunner().invoke(cli, ["--config", str(config.file), "notify"])
    assert ran.exit_code == 1
    assert ran.stdout.splitlines() == [
        "FAIL  command: false ended with 1",
        "ok    webhook: 127.0.0.1 answered 200",
        "ok    heartbeat: 127.0.0.1 answered 200",
    ]
    posted, _ = receiver.requests
    assert (posted.json["test"], posted.json["events"]) == (True, [])
    assert not (Path(config.path) / PRIVATE).exists(), "it notes nothing"
    made(f'webhook = "{receiver.url}"')
    ran = CliRunner().invoke(cli, ["--config", str(config.file), "notify", "--json"])
    assert (ran.exit_code, json.loads(ran.stdout)) == (
        0, {"name": "webhook", "answer": "127.0.0.1 answered 200", "error": None},
    )  # fmt: skip
    ran = CliRunner().invoke(cli, ["--config", str(made().file), "notify"])
    assert isinstance(ran.exception, ConfigurationError)
    assert "names nobody to whom a message is sent" in str(ran.exception)


def test_a_bucket_is_asked_for_little_and_loses_nothing(moto: Moto, made: Made) -> None:
    """Two commands at once, whose files lie in a bucket, and what each asks it for."""
    sent: list[Message] = []

    def arrives(message: Message) -> str:
        sent.append(message)
        return ""

    with RequestCounter(moto) as counter:
        bucket, config = counter.bucket(), made()
        store = Store(bucket.root, storage=bucket.settings)

        def tell_of(*reports: Report) -> Counter[str]:
            command = EndedCommand(config, store, reports, NOW)
            with counter.counted(bucket) as found:
                Notifier("webhook", arrives).tell(command)
            return Counter(operation for operation, _ in found.requests.elements())

        assert tell_of(well(), well("lines")) == {"read": 2, "write": 1}
        assert tell_of(failed(down()), well("lines")) == {"read": 3, "write": 2}
        assert tell_of(failed(down()), well("lines")) == {"read": 2, "write": 1}
        commands = [
            EndedCommand(config, store, [failed(TableShrank("Gone."), name)], NOW)
            for name in ("orders", "lines") * 2
        ]
        threads = [
            threading.Thread(target=Notifier("webhook", arrives).tell, args=(one,))
            for one in commands
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        Notifier("webhook", arrives).tell(EndedCommand(config, store, (), NOW))
    told = [name for one in sent[1:] for group in one.groups for name in group.tables]
    assert sorted(told) == ["lines", "orders"], "each once"

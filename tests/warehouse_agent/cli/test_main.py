"""The warehouse's command line: exit codes, what goes to stdout, and what a user is told.

Commands that need Spark run in this process with the warm session; what only a process can show
(stdout of the JVM, exit codes of the console script) is shown by processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from driftline.errors import ConfigurationError
from pyspark.sql import SparkSession

from source_agent.enrolment import enroll
from tests.harness import forks
from tests.harness.forks import SOURCE, WAREHOUSE
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair, SourceProcess, environment
from tests.harness.warm_jvm import warm_jvm
from tests.warehouse_agent.storage.test_store import held
from warehouse_agent.cli import answers, main
from warehouse_agent.report import Report

pytestmark = pytest.mark.slow  # starts a process for many commands

REPORT = [
    "name", "command", "version", "previous_version",
    "run", "started_at", "release", "source", "source_release", "rows_inserted", "rows_updated",
    "rows_deleted", "schema_changed", "schema_changes", "rows_total", "rows_left", "updates_left",
    "marker", "audit", "allowed",
    "bytes_sent", "bytes_received", "copy_bytes", "changed",
    "bytes_rewritten", "repaired_files", "repaired_rows",
    "predicted", "modelled", "changes_expected", "round_trips", "source_scans", "source_rows_read",
    "held_back_s", "snapshot_s", "seconds", "places", "places_why",
    "requests", "method", "method_why", "consistency", "proof", "fingerprint", "miss_probability",
    "as_of", "checked_at", "refreshed_at", "activity", "attempts", "retried", "tiles", "tiles_done",
    "resumed_at", "not_started", "warehouse_version", "inputs", "stale", "derived", "held", "ahead",
    "proven_at", "view_phases", "staleness", "failed_at", "put_off_until", "error", "schema",
]  # fmt: skip
ERROR = ["code", "message", "where", "remedy", "safe_to_retry", "exit_code", "details"]
STATUS = [
    "name", "version", "rows_total", "as_of", "checked_at", "published_at", "consistency", "proof",
    "fingerprint", "miss_probability", "years_until_a_change_is_missed", "files", "bytes",
    "row_security", "kind", "visible_version", "visible_as_of", "inputs", "stale", "ahead",
    "staleness", "audit", "marker_warnings", "part", "activity", "other", "damaged", "failed",
    "recovered", "put_off_until", "state", "alarms", "tried_at", "late_s", "late_after_s",
    "totals",
    "staged", "schema",
]  # fmt: skip
HISTORY = {
    "version", "as_of", "consistency", "proof", "fingerprint", "vouched", "rows", "published_at",
    "changes", "rows_inserted", "rows_updated", "rows_deleted", "method", "checked_at",
    "repaired_files", "repaired_rows", "held_back_s", "snapshot_s", "failed", "requests",
}  # fmt: skip
RECEIPT = [
    "relation", "columns", "key_columns", "as_of", "version", "count", "sum", "fragment_key",
    "salt", "proven",
]  # fmt: skip
CRITICAL, UNKNOWN = 2, 3  # to monitoring
NOBODY = "127.0.0.1:9"  # the discard port: nobody listens

Run = Callable[..., "Ended"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """stdout as JSON Lines, nothing else among them."""
        return [json.loads(line) for line in self.out.splitlines()]


def command(*words: object, config: Path | None = None, **variables: str) -> Ended:
    """The agent as a process; `variables`: more of its environment."""
    chosen = [] if config is None else ["--config", str(config)]
    done = forks.run([*WAREHOUSE, *chosen, *map(str, words)], env=environment(**variables))
    return Ended(done.returncode, done.stdout, done.stderr)


def warm_command(*words: object, config: Path) -> Ended:
    """The agent as a process whose session, if it starts one, is in a JVM that runs."""
    return command(*words, config=config, **warm_jvm())


@pytest.fixture
def run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The agent in this process, with the warm session."""

    def run(*words: object, config: Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["driftline", "--config", str(config), *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, said.out, said.err)

    monkeypatch.setattr("warehouse_agent.spark.session.start", lambda *_: spark)
    return run


@pytest.mark.parametrize("version", [3, 4])
def test_of_a_part_it_is_said_what_was_not_compared(version: int) -> None:
    report = Report("orders", version=version, previous_version=3, rows_total=5000, as_of="then")
    assert "not compared" not in answers.text_of(report)
    said = answers.text_of(replace(report, proof="part", rows_left=1234))
    assert "as of then, 1,234 rows not compared (" in said
    part = replace(report, proof="part", rows_left=1234, updates_left=5.25, allowed="no scan")
    said = answers.text_of(part)
    assert "1,234 rows not compared, of which 5.2 are expected to have been updated" in said
    assert "(the source allows no scan)" in said


def written(folder: Path, address: str = NOBODY, more: str = "") -> Path:
    """A configuration of the fragments `orders` and `items`, in plain text to loopback."""
    file = folder / "warehouse.toml"
    file.write_text(
        f'[warehouse]\npath = "warehouse"\n{more}\n[sources.erp]\naddress = "{address}"\n'
        'insecure = true\n[fragments.orders]\nsource = "erp"\n[fragments.items]\nsource = "erp"\n'
    )
    return file


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=True)
    for name in ("orders", "items"):
        legacy.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, note TEXT)")
        rows = [(i, f"{name} {i * i}") for i in range(300)]
        legacy.many(f"INSERT INTO {name} VALUES (?, ?)", rows)
    relations = {name: f'table = "{name}"' for name in ("orders", "items")}
    with Pair(spark, legacy, tmp_path / "pair", relations) as made:
        yield made
    legacy.close()


# what the user did wrong


def test_no_configuration(tmp_path: Path) -> None:
    ended = command("status", config=tmp_path / "none.toml")
    assert (ended.code, ended.out) == (2, "")
    assert "There is no file" in ended.err
    assert "Name it with --config FILE, or write one with `init`." in ended.err
    assert "Traceback" not in ended.err


def test_an_unknown_key_with_the_nearest_name(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace("insecure = true", "insecur = true"))
    ended = command("refresh", "--all", "--json", config=file)
    assert (ended.code, ended.out) == (2, "")
    assert "Did you mean 'insecure'?" in ended.err
    assert "Traceback" not in ended.err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    for words in (("--debug", "status"), ("status", "--debug")):
        ended = command(*words, config=tmp_path / "none.toml")
        assert ended.code == 2
        assert "Traceback" in ended.err
    for name, found in main.cli.commands.items():
        assert any("--debug" in option.opts for option in found.params), name


@pytest.mark.parametrize("words", [("status",), ("schedule",)])
def test_a_terminal_in_ascii(tmp_path: Path, words: tuple[str, ...]) -> None:
    """What its encoding lacks is escaped."""
    file = written(tmp_path)
    file.write_text(file.read_text().replace("[fragments.orders]", '[fragments."größe"]'))
    variables = environment() | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, *WAREHOUSE, "--config", str(file), *words],
        cwd=tmp_path, env=variables, timeout=60, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"cannot name a fragment" in done.stderr


def test_debug_shows_the_traceback_of_what_failed_for_one_fragment(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path)
    assert run("verify", "orders", config=file).code == 1
    assert not [record for record in caplog.records if record.exc_info]
    assert run("--debug", "verify", "orders", config=file).code == 1
    # By the records: a logger of PySpark that a test woke gives pytest's handlers its own format.
    (failed,) = (record for record in caplog.records if record.exc_info)
    assert failed.message == "orders failed"


HANGS = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from warehouse_agent.cli import main, status
from warehouse_agent.runs.threads import NAME
def broken(*_, **__):
    work = ThreadPoolExecutor(1).submit(time.sleep, 600)
    threading.Thread(target=work.result, name=f"{NAME}-1", daemon=True).start()
    raise ZeroDivisionError
status.status = broken
main.main()
"""


def test_an_unforeseen_error_waits_for_no_other_source(tmp_path: Path) -> None:
    """Python would wait at its end for what the thread of another source has started."""
    words = ["--config", str(written(tmp_path)), "status"]
    done = forks.run(["-c", HANGS, *words], env=environment(), timeout=60)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage"),
        (["frobnicate"], "No such command"),
        (["refresh", "--al"], "No such option"),
        (["gc"], "No table is named"),
        (["refresh", "--all", "orders"], "--all and names were given together"),
        (["refresh", "ordres"], "Did you mean 'orders'?"),
        (["plan", "x*"], "No table of warehouse.toml matches"),
        (["gc", "orders", "--keep-hours", "-1"], "too few"),
    ],
)
def test_usage(tmp_path: Path, words: list[str], said: str) -> None:
    ended = command(*words, config=written(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_help_and_version() -> None:
    said = command("--help").out
    assert "refresh" in said
    assert "prove" in said
    assert "..." not in said.partition("Commands:")[2], "a description is cut off"
    assert command("--version").out.startswith("driftline ")


def test_init(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    assert command("init", config=file).code == 0
    # What it writes is valid but for certificates, which are read when they are used.
    shown = command("status", config=file).out.splitlines()
    assert shown[1].split() == ["orders", "nothing", "published", "yet"]
    assert shown[2:] == ["orders: nothing published yet; driftline refresh orders"]
    again = command("init", config=file)
    assert again.code == 2
    assert "exists already" in again.err
    assert command("init", "--force", config=file).code == 0


# what happens to a refresh


def test_an_unreachable_source(tmp_path: Path, run: Run) -> None:
    config = written(tmp_path)
    ended = run("refresh", "--all", "--json", config=config)
    assert ended.code == 4
    assert [(r["name"], r["error"]["code"], r["attempts"]) for r in ended.lines] == [
        ("items", "UNREACHABLE", 1),
        ("orders", "UNREACHABLE", 1),
    ]
    assert ended.err.count(NOBODY) == 1, "one cause is said once"
    assert "orders: same cause as items." in ended.err
    assert "Trying again" not in ended.err
    assert "Traceback" not in ended.err
    planned = run("plan", "--json", config=config)
    assert planned.code == 4, "a price without the source is half a price"
    assert ["Nothing answers" in line["source_error"] for line in planned.lines] == [True, True]
    assert "the source could not be asked: Nothing" in run("plan", "orders", config=config).out


@pytest.fixture
def secure(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    """The pair over mutual TLS; the warehouse of another authority is in `foreign`."""
    for name in ("certs", "foreign"):
        enroll(tmp_path / name, source_names=["127.0.0.1"])
    certs = tmp_path / "certs"
    pair.stop()
    lines = (
        f'listen = "127.0.0.1:0"\ncertificate = "{certs}/source.pem"\nkey = "{certs}/source.key"\n'
        f'client_ca = "{certs}/ca.pem"'
    )
    with SourceProcess(pair.source_toml(lines), is_forked=True) as agent:
        pair.address = agent.address
        yield pair


def tls(pair: Pair, ca: Path, certificates: Path) -> Path:
    pair.source_lines = (
        f'address = "{pair.address}"\nca = "{ca}/ca.pem"\n'
        f'certificate = "{certificates}/warehouse.pem"\nkey = "{certificates}/warehouse.key"'
    )
    return pair.warehouse_toml()


@pytest.fixture
def no_spark(
    run: Run,  # noqa: ARG001 - it replaces the start of Spark first
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Spark must not be started."""
    started: list[object] = []

    def start(settings: dict[str, str], *_: object) -> SparkSession:
        started.append(settings)
        raise ConfigurationError("Spark was started.")

    monkeypatch.setattr("warehouse_agent.spark.session.start", start)
    yield
    assert not started


@pytest.mark.usefixtures("no_spark")
def test_mistakes_are_told_before_spark_is_started(
    secure: Pair, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, certificates, relation, lock, and of a first load the database."""
    good, foreign = tmp_path / "certs", tmp_path / "foreign"
    assert run("refresh", config=written(tmp_path)).code == 4
    assert run("refresh", config=tls(secure, good, foreign)).code == 5
    config = tls(secure, good, good)
    with held(secure.warehouse):
        assert run("refresh", "orders", config=config).code == 75
    secure.fragment_lines["items"] = 'relation = "secret"'
    ended = run("refresh", "items", config=secure.warehouse_toml())
    assert (ended.code, "NOT_FOUND" in ended.err) == (1, True)
    monkeypatch.setattr("warehouse_agent.runs.batch.WAIT_S_MAX", 0.001)
    secure.legacy.close()
    (tmp_path / "erp.db").rename(tmp_path / "gone.db")
    ended = run("refresh", "orders", "--json", config=config)
    assert (ended.code, ended.lines[0]["error"]["code"]) == (4, "DATABASE_UNAVAILABLE")
    assert ended.lines[0]["attempts"] == 4
    assert ended.err.count("Trying again.") == 3, "it is said only when it is done"
    assert run("verify", config=config).code == 1, "nothing is published"


def test_certificates_of_another_authority(secure: Pair, tmp_path: Path, run: Run) -> None:
    good, foreign = tmp_path / "certs", tmp_path / "foreign"
    for ca, own in ((good, foreign), (foreign, good)):
        ended = run("refresh", "orders", "--json", config=tls(secure, ca, own))
        assert ended.code == 5, ended.err
        (report,) = ended.lines
        assert report["error"]["code"] == "UNAUTHENTICATED"
        assert "Traceback" not in ended.err
    checked = run("doctor", "--json", config=tls(secure, good, foreign))
    codes = {c["check"]: c["code"] for c in checked.lines if c["code"]}
    assert codes["source erp: TLS"] == "UNAUTHENTICATED"
    told = run("doctor", config=tls(secure, good, foreign)).out
    assert "FAIL  fragment orders: relation: same cause as source erp: TLS\n" in told
    assert run("refresh", "orders", config=tls(secure, good, good)).code == 0


def test_doctor(secure: Pair, tmp_path: Path, run: Run) -> None:
    config = tls(secure, tmp_path / "certs", tmp_path / "certs")
    assert run("refresh", "orders", config=config).code == 0
    ended = run("doctor", config=config)
    assert ended.code == 0, ended.out
    assert ended.err.splitlines()[-1] == "no check failed"
    for words in (
        "GiB free", "pyspark", "Java", "workers with Python", "answers in",
        "our certificate: valid until", "certificate for 127.0.0.1", "days left", "protocol 1",
        "key (id)", "1 int8, 1 text", "version 0, 300 rows", "items: published: nothing yet",
    ):  # fmt: skip
        assert words in ended.out, words
    assert not list((secure.warehouse / "_driftline").rglob("doctor*")), "it tidies up"
    secure.legacy.execute("ALTER TABLE orders ADD COLUMN extra TEXT")
    ended = run("doctor", config=config)
    assert ended.code == 6
    assert "column extra (text) was added" in ended.out
    assert ended.err.splitlines()[-1] == "1 of 14 checks failed"


def test_some_went_well(pair: Pair, run: Run) -> None:
    pair.fragment_lines["items"] = 'relation = "secret"'
    ended = run("refresh", "--all", "--json", config=pair.warehouse_toml())
    assert ended.code == 3
    bad, good = ended.lines
    assert list(good) == list(bad) == REPORT
    assert (good["name"], good["error"], good["rows_total"]) == ("orders", None, 300)
    assert list(bad["error"]) == ERROR
    assert (bad["name"], bad["error"]["code"]) == ("items", "NOT_FOUND")
    assert "error NOT_FOUND" in ended.err
    ended = run("refresh", "items", "--json", config=pair.warehouse_toml())
    assert ended.code == 1, "alone it is a failure, not a partial success"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45), ("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400),
        ("1d2h3m4s", 93_784), ("999999d", 86_399_913_600),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: int) -> None:
    context = click.Context(main.cli)
    assert main._seconds(context, click.Option(["--deadline"]), text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "0s", "-1h", "1.5h", "2 h", "30m1h", "1h1h", "2H", "1w", "٢h", "9999999d"],
)
def test_a_duration_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    config = tmp_path / "warehouse.toml"
    config.write_text('[warehouse]\npath = "w"\n')
    ended = CliRunner().invoke(main.cli, ["--config", str(config), "refresh", "--deadline", text])
    assert ended.exit_code == 2
    assert f"'--deadline': {text!r} is no duration. Write it like 2h, 90m" in ended.output


def test_every_step_is_shown_and_the_total_of_all(
    pair: Pair, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a pipe, where each is a line if it comes late enough."""
    monkeypatch.setattr("warehouse_agent.cli.progress.LINE_EVERY_S", 0.0)
    ended = run("refresh", config=pair.warehouse_toml())
    assert ended.code == 0, ended.err
    for number, step in enumerate(("reduce", "exchange", "apply", "prove", "publish"), start=1):
        assert f"0 of 2 done, items: {step}, step {number} of 5" in ended.err
    assert "1 of 2 done, orders: apply, step 3 of 5" in ended.err, "each is settled in its turn"
    assert [line.split(":")[0] for line in ended.out.splitlines()] == ["items", "orders"]
    assert "2 tables in " in ended.err.splitlines()[-1]
    assert "600 rows changed" in ended.err.splitlines()[-1]
    assert "none failed" in ended.err.splitlines()[-1]


def test_what_jobs_read(pair: Pair, run: Run) -> None:
    config = pair.warehouse_toml()
    (never,) = run("status", "orders", "--json", config=config).lines
    assert list(never) == STATUS
    assert {k: v for k, v in never.items() if v is not None} == {
        "name": "orders",
        "kind": "fragment",
        "state": "unknown",
        "alarms": ["nothing published yet"],
        "schema": 1,
    }
    (loaded,) = run("refresh", "orders", "--json", config=config).lines
    assert list(loaded) == REPORT
    assert set(loaded["seconds"]) == {"reduce", "exchange", "apply", "prove", "publish"}
    pair.legacy.execute("UPDATE orders SET note = 'x' WHERE id < 3")
    (report,) = run("refresh", "or*", "--json", config=config).lines
    assert (report["version"], report["previous_version"], report["rows_updated"]) == (1, 0, 3)
    (status,) = run("status", "orders", "--json", config=config).lines
    assert list(status) == STATUS
    told = run("status", "--verbose", config=config).out.splitlines()
    assert [line.split()[:3] for line in told[1:3]] == [
        ["items", "nothing", "published"],
        ["orders", "1", "300"],
    ]
    assert told[3] == "items: nothing published yet; driftline refresh items"
    assert told[4].startswith("probability of a missed change: ")
    assert (status["version"], status["rows_total"], status["proof"]) == (1, 300, "total")
    assert status["as_of"] == report["as_of"]
    assert 0 < status["miss_probability"] < 1e-30
    assert status["years_until_a_change_is_missed"] > 1e20
    history = run("history", "orders", "--json", config=config).lines
    assert [v["version"] for v in history] == [1, 0]
    assert all(set(v) == HISTORY for v in history)
    assert len(run("history", "orders", "--limit", "1", config=config).out.splitlines()) == 1
    (garbage,) = run("gc", "orders", "--json", config=config).lines
    assert garbage == {
        "name": "orders",
        "files": 0,
        "bytes": 0,
        "removed": False,
        "staged_bytes_kept": 0,
    }
    ended = run("gc", "orders", "--keep-hours", "0", config=config)
    assert "would remove" in ended.out
    before = len(list(pair.warehouse.rglob("*.parquet")))
    assert run("gc", "orders", "--keep-hours", "0", "--yes", config=config).code == 0
    assert len(list(pair.warehouse.rglob("*.parquet"))) < before
    (verified,) = run("verify", "orders", "--json", config=config).lines
    assert list(verified) == REPORT
    assert (verified["proof"], verified["rows_total"]) == ("values", 300)
    pair.check("orders")


def test_a_held_fragment(pair: Pair, run: Run) -> None:
    config = pair.warehouse_toml()
    with held(pair.warehouse):
        assert run("gc", "orders", config=config).code == 75
        ended = command("gc", "orders", config=config)
        assert ended.code == 75
        assert "Safe to run again." in ended.err


def data_file(pair: Pair) -> Path:
    return Path(DeltaTable(pair.warehouse / "orders").file_uris()[0])


@pytest.mark.parametrize("quarter", [1, 2])
def test_verify_finds_a_flipped_byte(pair: Pair, run: Run, quarter: int) -> None:
    config = pair.warehouse_toml()
    assert run("refresh", "orders", config=config).code == 0
    file = data_file(pair)
    data = bytearray(file.read_bytes())
    data[quarter * len(data) // 4] ^= 0x10
    file.write_bytes(data)
    ended = run("verify", "orders", "--json", config=config)
    assert ended.code == 1
    (report,) = ended.lines
    assert report["error"]["code"] == "WAREHOUSE"
    assert not report["error"]["safe_to_retry"]
    assert file.name in report["error"]["message"]
    assert file.name in ended.err


def test_verify_finds_a_missing_file(pair: Pair, run: Run) -> None:
    config = pair.warehouse_toml()
    assert run("refresh", "--all", config=config).code == 0
    file = data_file(pair)
    file.unlink()
    ended = run("verify", "--all", config=config)
    assert ended.code == 3, "items are whole"
    assert f"{file.name} is missing" in ended.err
    assert "items: version 0, 300 rows verified" in ended.out
    assert run("receipt", "orders", config=config).code == 1
    doctor = run("doctor", config=config)
    assert doctor.code == 1
    assert f"{file.name} is missing" in doctor.out


def test_no_receipt_without_all_rows(pair: Pair, run: Run, tmp_path: Path) -> None:
    """A file that lost rows, with its size as it was; what it lacks is pulled again."""
    config, receipt = pair.warehouse_toml(), tmp_path / "orders.json"
    assert run("refresh", "--all", config=config).code == 0
    file = data_file(pair)
    size = file.stat().st_size
    pq.write_table(pq.read_table(file).slice(150), file, compression="zstd")
    data = file.read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])
    ended = run("receipt", "orders", "--output", receipt, config=config)
    assert ended.code == 1
    assert "150 rows were read, and the version has 300" in ended.err
    assert not receipt.exists()
    assert "driftline verify orders --repair" in ended.err
    assert run("verify", "orders", "--repair", config=config).code == 0
    assert run("receipt", "orders", "--output", receipt, config=config).code == 0


def test_verify_repairs(pair: Pair, run: Run) -> None:
    """What is missing is named, and pulled again when that is asked for, be it all of a table."""
    config = pair.warehouse_toml()
    assert run("refresh", "--all", config=config).code == 0
    file = data_file(pair)
    file.unlink()
    refused = run("refresh", "orders", config=config)
    assert refused.code == 1
    assert "driftline verify orders --repair" in refused.err
    found = run("verify", "orders", config=config)
    assert found.code == 1
    assert "driftline verify orders --repair" in found.err
    ended = run("verify", "--all", "--repair", "--json", config=config)
    assert ended.code == 0
    assert f"{file.name}: missing" in ended.err
    by_name = {line["name"]: line for line in ended.lines}
    assert (by_name["items"]["command"], by_name["items"]["proof"]) == ("verify", "values")
    assert (by_name["orders"]["command"], by_name["orders"]["proof"]) == ("refresh", "total")
    assert (by_name["orders"]["repaired_files"], by_name["orders"]["repaired_rows"]) == (1, 300)
    pair.check("orders")
    assert "orders: version 1, 300 rows verified" in run("verify", "orders", config=config).out


def test_nothing_to_verify(pair: Pair, run: Run) -> None:
    ended = run("verify", "orders", config=pair.warehouse_toml())
    assert ended.code == 1
    assert "Run `driftline refresh orders`." in ended.err


def test_a_receipt_from_end_to_end(pair: Pair, run: Run, tmp_path: Path) -> None:
    config, file = pair.warehouse_toml(), tmp_path / "here" / "orders.json"
    file.parent.mkdir()
    assert run("refresh", "orders", config=config).code == 0
    ended = run("receipt", "orders", "--output", file, config=config)
    assert ended.code == 0
    assert list(json.loads(file.read_text())) == RECEIPT
    assert file.stat().st_mode & 0o777 == 0o600

    def total() -> Ended:
        words = ["--config", str(pair.source_toml()), "total", "--receipt", str(file)]
        done = forks.run([*SOURCE, *words], env=environment())
        return Ended(done.returncode, done.stdout, done.stderr)

    equal = total()
    assert (equal.code, equal.err) == (0, "")
    assert "300 rows" in equal.out
    assert "equal to the receipt" in equal.out
    pair.legacy.execute("UPDATE orders SET note = 'changed' WHERE id = 7")
    other = total()
    assert other.code == 1
    assert "differs from the receipt" in other.out


@pytest.mark.spark
def test_a_process_says_nothing_but_json_on_stdout(pair: Pair) -> None:
    with SourceProcess(pair.source_toml(), is_forked=True) as agent:
        pair.address = agent.address
        config = pair.warehouse_toml(more='[spark]\n"spark.master" = "local[1]"')
        ended = command("refresh", "--all", "--json", config=config)
    assert ended.code == 0, ended.err
    assert [r["rows_total"] for r in ended.lines] == [300, 300]


def test_a_refresh_that_failed_is_seen_until_one_goes_well(pair: Pair, run: Run) -> None:
    """By people, by jobs and by monitoring, of which the exit codes are a convention."""
    config = pair.warehouse_toml()
    assert run("status", "--check", config=config).code == UNKNOWN, "nothing published yet"
    run("refresh", config=config)
    sound = run("status", "--check", config=config)
    assert (sound.code, sound.out) == (0, "OK: 2 tables\n")
    pair.legacy.execute("ALTER TABLE items RENAME TO elsewhere")
    assert run("refresh", config=config).code == 3
    assert run("refresh", "items", config=config).code != 0
    table = run("status", config=config).out.splitlines()
    assert "failed 2×: " in table[1]
    assert table[3].startswith("1 of 2 tables needs a look")
    told = run("status", "--verbose", config=config)
    assert told.code == 0, "status itself did not fail"
    (line,) = [one for one in told.out.splitlines() if " failed, " in one]
    assert line.startswith("items: the last 2 refreshes failed, the first just now, the last just")
    checked = run("status", "--check", config=config)
    assert checked.code == CRITICAL
    first, why, *_ = checked.out.splitlines()
    assert first.startswith("CRITICAL: 2 tables, 1 to look at: items: the last 2 refreshes failed")
    assert why == line
    (items,) = run("status", "items", "--json", config=config).lines
    (report,) = run("refresh", "items", "--json", config=config).lines
    assert (items["state"], items["failed"]["times"]) == ("critical", 2)
    for name in ("code", "message", "remedy", "where", "exit_code", "safe_to_retry"):
        assert items["failed"][name] == report["error"][name]
    newest, *_ = run("history", "items", config=config).out.splitlines()
    assert newest.startswith(f"failed: {items['failed']['since']} to ")
    assert report["error"]["code"] in newest
    (version,) = run("history", "items", "--json", config=config).lines
    assert [one["times"] for one in version["failed"]] == [3]
    pair.legacy.execute("ALTER TABLE elsewhere RENAME TO items")
    assert run("refresh", "items", config=config).code == 0
    assert run("status", "--check", config=config).out == "OK: 2 tables\n"
    assert "failed" not in run("status", config=config).out
    assert "failed: " in run("history", "items", config=config).out, "what was, is kept"


def test_what_hinders_a_check_is_not_the_state_of_a_table(tmp_path: Path) -> None:
    missing = command("status", "--check", config=tmp_path / "none.toml")
    misspelt = command("status", "--check", "--al", config=written(tmp_path))
    assert (missing.code, misspelt.code) == (UNKNOWN, UNKNOWN)

"""The folder of a report: whole pages, only its own are removed, anything else is refused."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from driftline.errors import Locked, UsageError, ValueDoesNotFit

from tests import ROOT
from tests.harness.pair import environment
from tests.harness.past_refreshes import Past, configured
from warehouse_agent.cli.main import cli
from warehouse_agent.monitoring.report import folder, written_report
from warehouse_agent.storage.store import PRIVATE, Store

AGO = datetime.now(UTC) - timedelta(minutes=9)
SECRET = "Alice Miller"
VALUE = ValueDoesNotFit(
    f"The value {SECRET!r} does not fit.", where="prices.amount", remedy="Set `carriers`."
)


def report(config: Path, output: Path, *words: str) -> None:
    line = ["--config", str(config), "report", "--output", str(output), *words]
    cli.main(line, standalone_mode=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    store = Store(str(tmp_path / "warehouse"))
    Past("orders", 5, AGO).write(store)
    Past("prices", 5, AGO, lost=1, error=VALUE).write(store)
    return configured(tmp_path, ["orders", "prices"])


def names(output: Path) -> set[str]:
    return {str(file.relative_to(output)) for file in output.rglob("*") if file.is_file()}


def test_pages_of_tables_that_are_gone_are_removed_and_nothing_else(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out" / "report"
    report(config, output)
    assert capsys.readouterr().out == f"Wrote {output}/index.html: 2 tables, 1 to look at\n"
    ours = {"index.html", "driftline-report.json", "tables/orders.html", "tables/prices.html"}
    assert names(output) == ours
    for other in ("tables/mine.html", "note.txt"):
        (output / other).write_text("mine")
    report(config, output, "orders")
    assert names(output) == ours - {"tables/prices.html"} | {"tables/mine.html", "note.txt"}
    report(config, output)
    assert names(output) == ours | {"tables/mine.html", "note.txt"}


def test_json(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    report(config, tmp_path / "out", "--json", "prices")
    index = str(tmp_path / "out/index.html")
    assert json.loads(capsys.readouterr().out) == {"index": index, "tables": 1, "to_look_at": 1}


def test_a_folder_of_something_else_is_refused(config: Path, tmp_path: Path) -> None:
    output = tmp_path / "site"
    output.mkdir()
    (output / "index.html").write_text("mine")
    for _ in range(2):
        with pytest.raises(UsageError) as refused:
            report(config, output)
        assert "holds no report" in refused.value.message
        assert "empty folder" in refused.value.remedy
        (output / folder.MANIFEST).write_text("{}")  # damaged
    assert (output / "index.html").read_text() == "mine"
    with pytest.raises(click.BadParameter):
        report(config, output / "index.html")


def test_a_manifest_names_no_file_outside(config: Path, tmp_path: Path) -> None:
    output, victim = tmp_path / "out", tmp_path / "victim.html"
    report(config, output)
    victim.write_text("mine")
    listed = ["../victim.html", str(victim), "tables/../../victim.html", "index.html"]
    (output / folder.MANIFEST).write_text(json.dumps({"pages": listed}))
    report(config, output)
    assert victim.read_text() == "mine"


def test_a_page_is_whole_or_the_one_before(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    report(config, output)
    before = (output / "tables/orders.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(UsageError, match="No space left"):
            report(config, output)
    assert (output / "tables/orders.html").read_bytes() == before
    report(config, output)
    assert not [name for name in names(output) if "unfinished" in name]


def test_one_command_writes_at_a_time(config: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    handle = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(Locked, match="Another command writes this report"):
            report(config, output)
    finally:
        os.close(handle)
    report(config, output)


def test_values_are_written_on_asking_for_their_owner_alone(config: Path, tmp_path: Path) -> None:
    for words, is_shown in (((), False), (("--values",), True), ((), False)):
        report(config, tmp_path / "out", *words)
        for name in names(tmp_path / "out"):
            file = tmp_path / "out" / name
            if name.endswith("html") and "orders" not in name:
                assert (SECRET in file.read_text()) is is_shown
            assert stat.S_IMODE(file.stat().st_mode) == (0o600 if is_shown else 0o644)


def test_a_table_that_cannot_be_read_is_told_among_the_others(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    entry = next((tmp_path / "warehouse/orders/_delta_log").glob("*.json"))
    entry.write_text("{")
    with pytest.raises(SystemExit):
        report(config, tmp_path / "out")
    said = capsys.readouterr()
    assert said.out == f"Wrote {tmp_path}/out/index.html: 2 tables, 2 to look at\n"
    assert "orders" in said.err
    index = (tmp_path / "out/index.html").read_text()
    assert "cannot be read: WAREHOUSE" in index
    assert (tmp_path / "out/tables/orders.html").exists()


@pytest.mark.starts
@pytest.mark.slow
def test_pages_of_many_tables_are_made_by_several_processes(config: Path, tmp_path: Path) -> None:
    many = ["orders", *(f"t{n}" for n in range(3 * written_report.LOT_TABLES)), "prices"]
    configured(tmp_path, many)
    words = ["--config", str(config), "report", "--output", str(tmp_path / "out")]
    command = [sys.executable, "-m", "warehouse_agent.cli", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert len(names(tmp_path / "out")) == len(many) + 2
    index = (tmp_path / "out/index.html").read_text().partition("<tbody>")[2]
    shown = re.findall(r'href="tables/(\w+)', index)
    assert shown == ["prices", *many[1:-1], "orders"]


def test_a_killed_command_is_told(config: Path, tmp_path: Path) -> None:
    began = datetime.now(UTC).timestamp() - 60
    said = {"began": began, "who": "process 7", "names": ["orders"], "said": began}
    store = Store(str(tmp_path / "warehouse"))
    store.write(json.dumps(said).encode() + b"\n", PRIVATE, "commands", "abc.jsonl")
    report(config, tmp_path / "out")
    index = (tmp_path / "out/index.html").read_text()
    assert "process 7, begun" in index
    assert "was killed after" in index
    assert "failed: KILLED" in index

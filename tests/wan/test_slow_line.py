"""A line of 256 kbit/s: two warehouses load over it at a time, and a large row comes.

The source reads one relation at a time. Each load takes longer than a place for a scan is kept
while another client waits; if one is cut, it keeps what arrived. Warehouses and agent are the
commands that people run.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from source_agent.budgets.places import WAITED_S_MAX
from source_agent.enrolment import enroll
from tests import ROOT
from tests.harness.agents import configuration
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import environment
from tests.wan import link as wan

PORT = 7443
RATE_MBIT, RTT_MS = 0.256, 100
# Random, so that a row costs this much on the line: 160 s for each of the two alone.
ROWS, NOTE_BYTES = 17_000, 300
COMMANDS_MAX = 5  # of each; with exit code 75 all places were taken for as long as it waited
LOADS_S_MAX = 1200.0
ROW_BYTES = 1_500_000  # 47 s on the line, which is longer than a warehouse bears silence
NAMES = ("lake", "mart")

pytestmark = [
    pytest.mark.wan,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("wan_available"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note BLOB)")
    noise = random.Random(6)
    legacy.many(
        "INSERT INTO t VALUES (?, ?)", [(i, noise.randbytes(NOTE_BYTES)) for i in range(ROWS)]
    )
    legacy.execute("CREATE TABLE large (id INTEGER PRIMARY KEY, note BLOB)")
    legacy.execute("INSERT INTO large VALUES (1, ?)", noise.randbytes(ROW_BYTES))
    for name in NAMES:
        enroll(tmp_path / name, source_names=[wan.SOURCE_ADDRESS], warehouse_name=name)
    shutil.copytree(tmp_path / "lake", tmp_path / "own")
    both = b"".join((tmp_path / name / "ca.pem").read_bytes() for name in NAMES)
    (tmp_path / "own" / "ca.pem").write_bytes(both)
    shutil.copy(tmp_path / "own" / "ca.pem", tmp_path / "mart" / "ca.pem")  # the source's is lake's
    file = configuration(
        tmp_path, tmp_path / "erp.db", certs=tmp_path / "own",
        more="[limits]\nscans_at_once = 1\nfeedback = false\n",
        relations='[relations.t]\ntable = "t"\n[relations.large]\ntable = "large"\n',
    ).path  # fmt: skip
    text = file.read_text().replace("127.0.0.1:0", f"{wan.SOURCE_ADDRESS}:{PORT}")
    file.write_text(text)
    for name in NAMES:
        (tmp_path / f"{name}.toml").write_text(
            f'[warehouse]\npath = "{name}.tables"\n'
            f'[sources.erp]\naddress = "{wan.SOURCE_ADDRESS}:{PORT}"\nca = "{name}/ca.pem"\n'
            f'certificate = "{name}/warehouse.pem"\nkey = "{name}/warehouse.key"\n'
            '[fragments.t]\nsource = "erp"\n[fragments.large]\nsource = "erp"\n'
        )
    return tmp_path


@pytest.fixture
def link(folder: Path) -> Iterator[wan.Link]:
    with wan.Link(rtt_ms=RTT_MS, rate_mbit=RATE_MBIT) as link, ExitStack() as stack:
        ready, log = folder / "port", stack.enter_context((folder / "log").open("wb"))
        words = [sys.executable, "-m", "source_agent.cli", "--config", str(folder / "source.toml")]
        process: subprocess.Popen[Any] = link.popen_source(
            [*words, "serve", "--port-file", str(ready)],
            stdout=log, stderr=log, cwd=ROOT, env=environment(),
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield link


def refresh(folder: Path, link: wan.Link, name: str, fragment: str) -> subprocess.Popen[str]:
    """Start a refresh by the warehouse of this name."""
    config = ["--config", str(folder / f"{name}.toml")]
    return link.popen_warehouse(
        [sys.executable, "-m", "warehouse_agent.cli", *config, "refresh", fragment],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip


def test_a_row_that_takes_longer_than_silence_is_borne(folder: Path, link: wan.Link) -> None:
    process = refresh(folder, link, "lake", "large")
    try:
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "Trying again" not in said
    (row,) = DeltaTable(str(folder / "lake.tables" / "large")).to_pyarrow_table().to_pylist()
    assert len(row["note"]) == ROW_BYTES


def test_two_loads_over_a_slow_line(folder: Path, link: wan.Link) -> None:
    began = time.monotonic()
    running: dict[str, subprocess.Popen[str]] = {}
    commands = dict.fromkeys(NAMES, 0)
    done: dict[str, float] = {}
    try:
        while len(done) < len(NAMES):
            assert time.monotonic() - began < LOADS_S_MAX, (commands, done)
            for name in set(NAMES) - {*done}:
                process = running.get(name)
                if process is None or process.poll() is not None:
                    if process is not None:
                        print(name, process.returncode, process.communicate()[1][-3000:])
                        if process.returncode == 0:
                            done[name] = time.monotonic() - began
                            continue
                        assert process.returncode == 75, "only places may be missing"
                    commands[name] += 1
                    assert commands[name] <= COMMANDS_MAX
                    running[name] = refresh(folder, link, name, "t")
            time.sleep(0.5)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    print("commands", commands, "done after", done)
    for name in NAMES:
        table = DeltaTable(str(folder / f"{name}.tables" / "t"))
        assert table.count() == ROWS
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    print([(x["client"][-4:], x["outcome"], x["bytes_out"], x["seconds"]) for x in lines])
    cut = [x for x in lines if x["outcome"] == "NOT_NOW" and x["rows_shipped"]]
    assert all(x["seconds"] >= WAITED_S_MAX for x in cut), "nobody left a place before its time"

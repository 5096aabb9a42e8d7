"""The commands of the units, from the wheel, as plain processes: where no systemd can be booted."""

from __future__ import annotations

import re
import shlex
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests import ROOT
from tests.harness.installation import Installation, clean_environment

pytestmark = pytest.mark.xdist_group("deploy")  # one release for all

UNITS = ROOT / "deploy" / "systemd"
START_S_MAX = 60.0


def words_of(unit: str, installation: Installation, folder: Path) -> list[str]:
    """What a unit runs, with the environment and the configuration of a test."""
    (line,) = re.findall(r"(?m)^ExecStart=(.*)$", (UNITS / unit).read_text(encoding="utf-8"))
    line = line.replace("/opt/driftline/bin/", f"{installation.folder}/bin/")
    return shlex.split(re.sub(r"/etc/driftline(-source)?/", f"{folder}/", line))


def write_example(name: str, folder: Path, **edits: str) -> None:
    """Write an example of a configuration, with places of a test."""
    text = (UNITS / name).read_text(encoding="utf-8")
    text = re.sub(r"/run/credentials/[\w.-]+/", f"{folder}/certs/", text)
    for old, new in edits.items():
        key = re.escape(old)
        text, count = re.subn(rf'(?m)^{key} = ".*"$', f'{key} = "{new}"', text)
        assert count == 1, old
    (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def serving(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, cwd="/", env=clean_environment(), stderr=out)
    try:
        deadline = time.monotonic() + START_S_MAX
        while "listening on" not in (said := log.read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path, installation: Installation) -> Path:
    """Both examples of configuration around a small SQLite table."""
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
        rows = [(n, f"note {n}") for n in range(300)]
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)
        connection.commit()
    enroll = ("enroll", "--directory", tmp_path / "certs", "--source-name", "localhost")
    installation.run("driftline-source", *enroll, cwd=tmp_path)
    password = tmp_path / "certs" / "database.password"
    password.touch(0o600)
    password.write_text("not needed by SQLite\n")
    return tmp_path


def test_a_table_is_kept_equal_without_a_checkout(
    folder: Path, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands of the units, and without a Java: small tables need no Spark."""
    write_example(
        "source.toml",
        folder,
        url=f"sqlite:///{folder}/erp.db",
        listen="127.0.0.1:0",
        audit_file=f"{folder}/audit.jsonl",
    )
    serve = words_of("driftline-source.service", installation, folder)
    with serving([*serve, "--port-file", str(folder / "port")], folder) as source:
        port = (folder / "port").read_text().strip()
        write_example(
            "warehouse.toml",
            folder,
            path=f"{folder}/warehouse",
            address=f"localhost:{port}",
            ca="certs/ca.pem",
            certificate="certs/warehouse.pem",
        )
        refresh = words_of("driftline-refresh.service", installation, folder)
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        assert refresh[-3:] == ["refresh", "--due", "--json"]
        assert installation.run(*refresh, cwd=folder), "what was never published is due"
        assert published(folder) == there(folder)
        assert installation.run(*refresh, cwd=folder) == "", "nothing is, within the hour"
        with closing(sqlite3.connect(folder / "erp.db")) as connection:
            connection.execute("UPDATE orders SET note = 'changed' WHERE id % 50 = 7")
            connection.execute("DELETE FROM orders WHERE id = 5")
            connection.commit()
        toml = (folder / "warehouse.toml").read_text(encoding="utf-8")
        shorter = toml.replace('interval_max = "1h"', 'interval_max = "1s"')
        (folder / "warehouse.toml").write_text(shorter, encoding="utf-8")
        deadline = time.monotonic() + START_S_MAX
        while not installation.run(*refresh, cwd=folder):  # not due within the second
            assert time.monotonic() < deadline
        assert published(folder) == there(folder)
        source.send_signal(signal.SIGTERM)
        assert source.wait(timeout=START_S_MAX) == 0


def published(folder: Path) -> list[tuple[int, str]]:
    table = DeltaTable(folder / "warehouse" / "orders").to_pyarrow_table(columns=["id", "note"])
    return sorted((row["id"], row["note"]) for row in table.to_pylist())


def there(folder: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(folder / "erp.db")) as connection:
        return connection.execute("SELECT id, note FROM orders ORDER BY id").fetchall()

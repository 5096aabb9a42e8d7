"""With a umask that forbids nothing, others still write nothing that says what an agent runs."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from source_agent.cli.main import cli as source_cli
from source_agent.config.file import load
from source_agent.server.service import start
from warehouse_agent.cli.main import cli as warehouse_cli

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.starts
@pytest.mark.usefixtures("open_umask")
def test_what_the_commands_write(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "erp.db")) as owner:
        owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL)")
    source_toml, lake = tmp_path / "source.toml", tmp_path / "warehouse.toml"
    certs = tmp_path / "certs"
    url = f"sqlite:///{tmp_path}/erp.db"
    for words in (
        ["enroll", "--directory", str(certs), "--source-name", "127.0.0.1"],
        ["--config", str(source_toml), "init", "--url", url, "--listen", "127.0.0.1:0"],
    ):
        done = CliRunner().invoke(source_cli, words)
        assert done.exit_code == 0, done.output
    server = start(load(source_toml))
    files = {"ca": "ca.pem", "certificate": "warehouse.pem", "key": "warehouse.key"}
    options = [f"--{name}={certs / file}" for name, file in files.items()]
    try:
        words = ["init", "--source", f"127.0.0.1:{server.port}", *options, "--name", "erp"]
        done = CliRunner().invoke(warehouse_cli, ["--config", str(lake), *words])
        assert done.exit_code == 0, done.output
    finally:
        server.stop()
    written = [certs, *certs.iterdir(), source_toml, tmp_path / "grants.sh", lake]
    assert {path.name for path in written} >= {"ca.pem", "source.key", "warehouse.key"}
    for path in written:
        mode = path.stat().st_mode
        assert not mode & OTHERS_WRITE, path
        assert path.suffix != ".key" or stat.S_IMODE(mode) == 0o600, path

"""What `doctor` says of those who are told: each finding, and that nothing is sent."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError
from driftline.metrics_server import MetricsServer

from warehouse_agent.config.file import load
from warehouse_agent.inspection.readiness import ReadinessCheck, check
from warehouse_agent.inspection.watcher_readiness import checks

HEAD = '[warehouse]\npath = "warehouse"\n'


def found(folder: Path, text: str) -> dict[str, ReadinessCheck]:
    """The checks of a configuration, by name."""
    file = folder / "warehouse.toml"
    file.write_text(HEAD + text)
    return {what: check(what, look) for what, look in checks(load(file))}


def said(made: ReadinessCheck) -> str:
    assert isinstance(made.error, ConfigurationError), made
    return str(made.error)


def secret(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_nobody_is_told(tmp_path: Path) -> None:
    assert found(tmp_path, "") == {}


def test_all_is_well(tmp_path: Path) -> None:
    secret(tmp_path, "hook.url", "https://127.0.0.1:1/a-secret\n")
    secret(tmp_path, "key", "a key\n")
    made = found(
        tmp_path,
        '[metrics]\ntextfile = "lake.prom"\nlisten = "127.0.0.1:0"\n'
        f'[notify]\ncommand = ["{sys.executable}", "-c", ""]\nwebhook_file = "hook.url"\n'
        'webhook_secret_file = "key"\nheartbeat = "http://localhost:1/beat"\n',
    )
    assert [one for one in made.values() if one.error] == []
    assert list(made) == [
        "metrics: textfile",
        "metrics: listen",
        "notify: command",
        "notify: webhook",
        "notify: webhook_secret_file",
        "notify: heartbeat",
    ]
    assert "a-secret" not in str(made)
    assert list(tmp_path.glob("*.prom*")) == []


def test_an_address_of_metrics(tmp_path: Path) -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: b"driftline_rows 1\n")
    port = server.address.split(":")[2].split("/")[0]
    table = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
    try:
        made = found(tmp_path, table)["metrics: listen"]
        assert made.found == f"127.0.0.1:{port} is served by a `driftline run`"
    finally:
        server.stop()
    assert found(tmp_path, table)["metrics: listen"].found == f"127.0.0.1:{port} is free"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.settimeout(0)
        table = f'[metrics]\nlisten = "127.0.0.1:{other.getsockname()[1]}"\n'
        assert "in use" in said(found(tmp_path, table)["metrics: listen"])


def test_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(name: str) -> ReadinessCheck:
        return found(tmp_path, f'[notify]\ncommand = ["{name}", "x"]\n')["notify: command"]

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tell").write_text("#!/bin/sh\n")
    assert "may not be run" in said(program("bin/tell"))
    (tmp_path / "bin/tell").chmod(0o755)
    assert program("bin/tell").error is None, "from the folder of the configuration"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert program("tell").error is None
    assert "no program" in said(program("bin"))
    assert "no program" in said(program("./bin"))
    assert "no program" in said(program("untell"))


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    table = '[notify]\nwebhook_file = "hook.url"\nwebhook_secret_file = "key"\n'
    made = found(tmp_path, table)
    assert "cannot be read" in said(made["notify: webhook"])
    assert "cannot be read" in said(made["notify: webhook_secret_file"])
    hook = secret(tmp_path, "hook.url", "https://nobody.invalid/a-secret")
    key = secret(tmp_path, "key", "")
    made = found(tmp_path, table)
    assert "nobody.invalid is not found" in said(made["notify: webhook"])
    assert "is empty" in said(made["notify: webhook_secret_file"])
    key.write_text("a key")
    key.chmod(0o644)
    hook.chmod(0o644)
    made = found(tmp_path, table)
    assert all("is open to others" in said(one) for one in made.values())
    hook.chmod(0o600)
    hook.write_text("http://chat.example.com/a-secret")
    assert "plain text" in said(found(tmp_path, table)["notify: webhook"])
    long = secret(tmp_path, "hook.url", f"https://{'a' * 64}.example.com/a-secret")
    assert "is not found" in said(found(tmp_path, table)["notify: webhook"])
    long.write_text("https://nobody.invalid/a-secret")
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    made = found(tmp_path, table)
    assert "through the proxy" in made["notify: webhook"].found
    assert "a-secret" not in str(made)

"""Why Spark does not start, in one sentence of the [spark] settings, from commands of their own;
and which Python its tasks run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from source_agent.server.service import start
from tests.harness.agents import configuration, make_orders
from tests.harness.pair import environment
from warehouse_agent.spark import session


@pytest.mark.slow  # starts processes, some with a JVM
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('"spark.driver.memory" = "2gg"', "did not start: Invalid maximum heap size: -Xmx2gg."),
        ('"spark.master" = "nonsense"', "did not start: Master must "),
        ('"spark.master" = "local[x]"', "Could not parse Master URL: 'local[x]'."),
    ],
)
def test_spark_that_does_not_start(tmp_path: Path, setting: str, says: str) -> None:
    """Java's and Spark's own reason; each fragment of each source has its report."""
    make_orders(tmp_path / "erp.db", [(1, "x")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    file = tmp_path / "warehouse.toml"
    address = f'address = "127.0.0.1:{server.port}"\ninsecure = true\n'
    file.write_text(
        f'[warehouse]\npath = "{tmp_path}/warehouse"\nsmall_bytes = 0\nsources_at_once = 1\n'
        f"[spark]\n{setting}\n"
        f"[sources.one]\n{address}[sources.two]\n{address}"
        '[fragments.first]\nsource = "one"\nrelation = "orders"\n'
        '[fragments.second]\nsource = "two"\nrelation = "orders"\n'
    )
    words = ["--config", str(file), "refresh", "--all", "--json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "warehouse_agent.cli", *words],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
            check=False,
        )
    finally:
        server.stop()
    assert done.returncode == 2, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["name"] for report in reports] == ["first", "second"], done.stdout
    for report in reports:
        assert report["error"]["code"] == "CONFIGURATION"
        assert report["error"]["where"] == "[spark]"
        assert says in report["error"]["message"]
        assert "\n" not in report["error"]["message"]


@pytest.mark.parametrize(
    ("named", "inherited", "used"),
    [
        (None, None, sys.executable),
        (None, "/of/the/environment", "/of/the/environment"),
        ("/of/the/settings", "/of/the/environment", "/of/the/settings"),
        ("/of/the/settings", None, "/of/the/settings"),
    ],
)
@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("PYSPARK_PYTHON", "spark.pyspark.python"),
        ("PYSPARK_DRIVER_PYTHON", "spark.pyspark.driver.python"),
    ],
)
def test_interpreters(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    key: str,
    named: str | None,
    inherited: str | None,
    used: str,
) -> None:
    """The settings win over the environment, which wins over this interpreter."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
    if inherited is not None:
        monkeypatch.setenv(variable, inherited)
    session.choose_interpreters({} if named is None else {key: named})
    assert os.environ[variable] == used

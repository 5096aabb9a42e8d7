"""The sensor for Airflow: against a real schedule, with stand-ins for the three classes that it
uses of Airflow, and (`soak`) in a real Airflow, installed into an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import ROOT
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment

FOLDER = ROOT / "deploy" / "airflow"
LINES_MAX = 60
PINNED = "apache-airflow==3.3.2"


class DeferredError(Exception):
    """As Airflow's own defer, which raises to leave `execute`."""


class Sensor:
    """The part of BaseSensorOperator that the sensor uses."""

    def __init__(self, task_id: str = "") -> None:
        self.task_id = task_id
        self.log = SimpleNamespace(info=lambda *_: None)

    def defer(self, *, trigger: Any, method_name: str) -> None:
        assert callable(getattr(self, method_name))
        raise DeferredError(trigger)


@pytest.fixture
def sensor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the sensor, over stand-ins."""
    trigger = lambda moment: moment  # noqa: E731
    parts: dict[str, dict[str, object]] = {
        "airflow": {},
        "airflow.sdk": {"BaseSensorOperator": Sensor},
        "airflow.providers": {},
        "airflow.providers.standard": {},
        "airflow.providers.standard.triggers": {},
        "airflow.providers.standard.triggers.temporal": {"DateTimeTrigger": trigger},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    made = ModuleType("driftline_sensor")
    exec(compile((FOLDER / "driftline_sensor.py").read_text(), "sensor", "exec"), vars(made))
    return made.DriftlineDueSensor


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db", wal=False)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL)")
    legacy.execute("CREATE TABLE items (id INTEGER PRIMARY KEY NOT NULL)")
    names = ("orders", "items")
    with Pair(NoSpark(), legacy, tmp_path / "pair", {n: f'table = "{n}"' for n in names}) as made:
        made.small_bytes = 32 << 20
        made.fragment_lines = {"orders": 'interval_max = "1d"', "items": 'interval_max = "3h"'}
        yield made
    legacy.close()


def command(folder: Path) -> str:
    """The command `driftline` of this tree, as a file."""
    file = folder / "driftline"
    code = "from warehouse_agent.cli.main import main; main()"
    file.write_text(
        f'#!/bin/sh\nPYTHONPATH="{environment(ROOT)["PYTHONPATH"]}"'
        f' exec "{sys.executable}" -c \'{code}\' "$@"\n'
    )
    file.chmod(0o755)
    return str(file)


def test_the_sensor_is_short() -> None:
    assert len((FOLDER / "driftline_sensor.py").read_text().splitlines()) < LINES_MAX


def test_it_returns_what_is_due_and_else_waits_for_the_next_moment(
    sensor: Any, pair: Pair, tmp_path: Path
) -> None:
    words = {"config": str(pair.warehouse_toml()), "command": command(tmp_path)}
    assert sensor(task_id="due", **words).execute({}) == ["orders", "items"]
    pair.refresh("orders")
    assert sensor(task_id="due", names=["orders", "items"], **words).execute({}) == ["items"]
    pair.refresh("items")
    before = datetime.now(UTC)
    with pytest.raises(DeferredError) as caught:
        sensor(task_id="due", **words).execute({})
    (moment,) = caught.value.args  # ten minutes: others may refresh
    assert timedelta(minutes=9) < moment - before < timedelta(minutes=12)
    pair.fragment_lines = {"items": 'interval_max = "300s"'}
    pair.warehouse_toml()
    with pytest.raises(DeferredError) as caught:
        sensor(task_id="due", names=["items"], **words).execute({})
    assert caught.value.args[0] - before < timedelta(minutes=6)


def test_a_command_that_fails_is_no_success(sensor: Any, tmp_path: Path) -> None:
    words = {"config": str(tmp_path / "no.toml"), "command": command(tmp_path)}
    with pytest.raises(RuntimeError, match=r"no\.toml"):
        sensor(task_id="due", **words).execute({})


@pytest.mark.soak
def test_the_example_in_a_real_airflow(pair: Pair, tmp_path: Path) -> None:
    """Its DAG refreshes what is due; then it defers, and refreshes again when the time has come."""
    home, python = tmp_path / "home", tmp_path / "airflow" / "bin" / "python"
    venv.create(tmp_path / "airflow", with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", PINNED], check=True)
    (home / "dags").mkdir(parents=True)
    for file in FOLDER.glob("*.py"):
        (home / "dags" / file.name).write_text(file.read_text())
    pair.fragment_lines = dict.fromkeys(("orders", "items"), 'interval_max = "240s"')
    known = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_VAR_DRIFTLINE_CONFIG": str(pair.warehouse_toml()),
        "AIRFLOW_VAR_DRIFTLINE_COMMAND": command(tmp_path),
    }

    def airflow(*words: str) -> str:
        done = subprocess.run(
            [python.with_name("airflow"), *words],
            env=known,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    airflow("db", "migrate")
    first = airflow("dags", "test", "driftline")
    assert "nothing is due" not in first
    assert [pair.version(name) for name in ("orders", "items")] == [0, 0]
    pair.legacy.execute("INSERT INTO orders VALUES (7)")
    second = airflow("dags", "test", "driftline")
    assert "nothing is due before" in second
    assert pair.version("orders") == 1
    assert json.loads(pair.reports("orders")[0].to_json())["rows_inserted"] == 0

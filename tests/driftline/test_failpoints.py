"""Failpoints: off unless armed, counted, once among processes, and refused if nobody knows them."""

from __future__ import annotations

import ast
import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import failpoints
from driftline.errors import UsageError
from driftline.failpoints import VARIABLE, Action, Failpoint, arm

from source_agent.failpoints import SourceFailpoint as SourcePoint
from tests import ROOT
from tests.harness.pair import environment
from warehouse_agent.failpoints import WarehouseFailpoint as WarehousePoint

POINT = WarehousePoint.COMMITTED
AGENTS: list[tuple[str, type[Failpoint]]] = [
    ("source_agent", SourcePoint),
    ("warehouse_agent", WarehousePoint),
]


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    arm(None)
    yield
    arm(None)


def test_nothing_happens_unless_armed() -> None:
    POINT.reach()
    arm(f"{WarehousePoint.COMMITTING.value}:raise")
    POINT.reach()


def test_it_acts_at_the_nth_time_and_never_again() -> None:
    arm(f"{POINT.value}:raise:3")
    POINT.reach()
    POINT.reach()
    with pytest.raises(RuntimeError, match=r"warehouse\.committed"):
        POINT.reach()
    POINT.reach()


def test_a_full_disk() -> None:
    arm(f"{POINT.value}:disk-full")
    with pytest.raises(OSError, match="No space left") as full:
        POINT.reach()
    assert full.value.errno == errno.ENOSPC


def test_once_among_all_processes(tmp_path: Path) -> None:
    text = f"{POINT.value}:raise:1:{tmp_path / 'fired'}"
    arm(text)
    with pytest.raises(RuntimeError):
        POINT.reach()
    arm(text)  # as another process
    POINT.reach()


@pytest.mark.slow
def test_a_kill_by_the_environment() -> None:
    code = f"from warehouse_agent import failpoints as f; f.WarehouseFailpoint.{POINT.name}.reach()"
    for armed, expected in ((f"{POINT.value}:kill", -signal.SIGKILL), ("", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(**{VARIABLE: armed}), check=False
        )
        assert done.returncode == expected


@pytest.mark.parametrize(
    "text",
    [
        *("warehouse.nonsense:kill", "warehouse.committed:explode", "warehouse.committed"),
        *("warehouse.committed:kill:0", "warehouse.committed:kill:x", "committed:kill"),
    ],
)
def test_a_command_refuses_what_arms_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    arm(text)
    with pytest.raises(UsageError, match=VARIABLE):
        WarehousePoint.check()


def test_a_point_of_the_other_agent_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both agents may have one environment, as in the demonstration."""
    text = f"{POINT.value}:{Action.KILL.value}"
    monkeypatch.setenv(VARIABLE, text)
    arm(text)
    SourcePoint.check()
    WarehousePoint.check()
    monkeypatch.delenv(VARIABLE)
    WarehousePoint.check()


@pytest.mark.parametrize(("package", "points"), AGENTS, ids=["source", "warehouse"])
def test_code_reaches_every_point_and_no_other(package: str, points: type[Failpoint]) -> None:
    reached = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(ast.Attribute(ast.Name(enum), name), "reach"):
                    if enum == points.__name__:
                        reached.add(name)
    assert reached == {point.name for point in points}


def test_values_begin_with_the_agent_and_are_different() -> None:
    values = [point.value for _, points in AGENTS for point in points]
    assert len(values) == len({*values})
    for package, points in AGENTS:
        assert all(p.value == f"{package.removesuffix('_agent')}.{p.name.lower()}" for p in points)


def test_an_unarmed_point_costs_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads one global and nothing else: not the environment."""
    assert failpoints._armed is None
    monkeypatch.setattr(failpoints, "os", None)
    POINT.reach()

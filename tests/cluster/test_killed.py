"""Executors are killed in the middle of each step: no row is wrong, missing or there twice.

A task that has lost its executor may still write. What it leaves is in no version.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.killing import LOAD, REFRESH, load_and_refresh
from tests.harness.cluster import Cluster
from tests.harness.held_daemon import HOLDS

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def settings(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`[spark]` of a driver whose tasks can be held."""
    return cluster.settings() | {
        "spark.python.daemon.module": "tests.harness.held_daemon",
        f"spark.executorEnv.{HOLDS}": str(tmp_path_factory.mktemp("holds")),
    }


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))]
)
def test_executor_killed_in_each_step(
    settings: dict[str, str], driver: ProcessPoolExecutor, tmp_path: Path, seed: int
) -> None:
    """Five kills each, 50 in a soak."""
    said = driver.submit(load_and_refresh, settings, tmp_path / "pair", seed).result()
    print("\n".join(said))
    assert len(said) == len(LOAD) + len(REFRESH)

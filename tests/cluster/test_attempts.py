"""Tasks that run more than once: what one attempt of each wrote counts, and nothing else.

The files of the other attempts stay where they are, unnamed, and `gc` removes them.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from driftline.failpoints import VARIABLE

from tests.cluster.attempts import ROWS, Outcome, written_twice
from tests.harness.cluster import Cluster
from tests.harness.held_daemon import HOLDS
from warehouse_agent.failpoints import WarehouseFailpoint

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.spark]

# Two tasks a job, of which one is over when the other one stands still.
TWO_TASKS = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "50ms",
    "spark.python.daemon.module": "tests.harness.held_daemon",
}


def counted_once(outcome: Outcome) -> bool:
    return outcome.named == 2 and outcome.rows == [*range(ROWS)]


def test_a_task_that_is_killed_after_it_wrote(
    cluster: Cluster, driver: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Its file is whole and was not named; the next attempt writes another one."""
    point = f"{WarehouseFailpoint.FILE_WRITTEN.value}:kill:1:{tmp_path}/killed"
    settings = cluster.settings() | TWO_TASKS | {f"spark.executorEnv.{VARIABLE}": point}
    data, feed = driver.submit(written_twice, settings, tmp_path / "warehouse").result()
    assert (tmp_path / "killed").exists()
    assert counted_once(data), data
    assert counted_once(feed), feed
    assert data.stored == 3, "the file of the attempt that was killed"
    assert data.stored_rows == ROWS + ROWS // 2
    assert feed.stored == 2


def test_a_task_that_is_too_slow(
    cluster: Cluster, driver: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Spark runs another attempt beside it, and takes what that one wrote."""
    holds = tmp_path / "holds"
    holds.mkdir()
    settings = cluster.settings() | TWO_TASKS | SPECULATION
    settings[f"spark.executorEnv.{HOLDS}"] = str(holds)
    data, feed = driver.submit(written_twice, settings, tmp_path / "warehouse").result()
    for outcome in (data, feed):
        assert counted_once(outcome), outcome
        assert outcome.stored == 3, "the file of the attempt that was too slow"
        assert outcome.stored_rows > ROWS

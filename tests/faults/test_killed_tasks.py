"""A Python worker of Spark is killed in the middle of a step, once or each time.

Data files are written by tasks. A task that is lost may leave a file that is half written, or whole
and unknown; Spark runs it again, perhaps twice at once (speculation).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.failpoints import VARIABLE
from pyspark.sql import SparkSession

from tests import ROOT
from tests.harness.fault_rig import Rig
from tests.harness.forks import WAREHOUSE, run
from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import environment
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.refresh.job import Options

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RETRYING = """[spark]
"spark.master" = "local[2,3]"
"spark.speculation" = "true"
"spark.speculation.interval" = "10ms"
"spark.speculation.multiplier" = "1.01"
"""


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    with Rig(SqliteLegacy(tmp_path / "erp.db"), tmp_path / "pair", spark=spark) as made:
        made.converge()
        yield made


@pytest.mark.parametrize(
    "point",
    [WarehouseFailpoint.ROWS_WRITTEN, WarehouseFailpoint.FILE_WRITTEN],
    ids=lambda p: p.value,
)
def test_workers_that_are_lost_each_time(
    rig: Rig, spark: SparkSession, point: WarehouseFailpoint
) -> None:
    """The step fails, and says that it may be run again; nothing is published."""
    rig.prepare("change")
    before = rig.pair.version("t"), rig.published()
    passed_on = spark.sparkContext.environment  # to Python workers alone
    passed_on[VARIABLE] = f"{point.value}:kill"
    try:
        error = rig.pair.error("t", options=Options(allow_shrink=True))
    finally:
        del passed_on[VARIABLE]
    assert (error["code"], error["safe_to_retry"]) == ("SPARK", True), error
    rig.check(before)


def test_a_task_that_is_lost_once_is_run_again(rig: Rig, tmp_path: Path) -> None:
    """One refresh is enough: what the lost task wrote is in no version, and `gc` finds it."""
    rig.prepare("change")
    fired = tmp_path / "fired"
    toml = rig.pair.warehouse_toml(RETRYING)
    done = run(
        [*WAREHOUSE, "--config", str(toml), "refresh", "t", "--allow-shrink"],
        cwd=ROOT,
        env=environment(**{VARIABLE: f"{WarehouseFailpoint.FILE_WRITTEN.value}:kill:1:{fired}"}),
    )
    assert done.returncode == 0, done.stderr
    assert fired.exists()
    assert rig.published() == rig.source()
    rig.check((rig.pair.version("t"), rig.published()))

"""Every step runs on the executors of a cluster, and does there what it does in this process.

`small_bytes = 0` lets no step stay with the driver. The steps are found in the source, so that a
new one cannot be left out: those of refreshes by `test_step_places`, those of views here.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.every_step import follow_view, found_on
from tests.conformance.test_step_places import TABLES, in_driver, run, steps_of_views
from tests.harness.cluster import Cluster

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.spark]


@pytest.mark.parametrize("name", [*TABLES, "view"])
def test_every_step_on_executors(
    cluster: Cluster, driver: ProcessPoolExecutor, tmp_path: Path, name: str
) -> None:
    settings = cluster.settings(spark_sql_shuffle_partitions="2")
    if name == "view":
        called = driver.submit(follow_view, settings, tmp_path / "view").result()
        wanted = steps_of_views()
        assert {"recomputed", "matching_codes", "maintain"} <= {step for _, step in wanted}
        assert wanted <= called, wanted - called
        return
    found = driver.submit(found_on, settings, tmp_path / "there", name).result()
    expected = run(in_driver(), tmp_path / "here", TABLES[name])
    for what, value in expected.items():
        assert found[what] == repr(value), what
    assert found.keys() == expected.keys()

"""Either agent is killed at each of its failpoints, once here, RUNS times by the soak.

What is checked after each kill: `tests/harness.fault_rig.py`. The engines take turns; those of
every run do not wait for MySQL, which has all points in the soak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.faults.sweep import ENGINES, IN_EVERY_RUN, KILLS, ON_SPARK, RUNS, Kill, label, rigs
from tests.harness.fault_rig import KillRig, Violation, reachable
from tests.harness.legacy import LEGACIES
from tests.harness.object_stores import on_disk
from warehouse_agent.failpoints import WarehouseFailpoint as Point

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def rig_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], KillRig]]:
    makes = {name: partial(LEGACIES[name], request) for name in ENGINES}
    with rigs(makes, tmp_path_factory.mktemp("sweep")) as found:
        yield found


@pytest.mark.parametrize(
    ("kill", "engine"),
    [
        *((kill, IN_EVERY_RUN[at % len(IN_EVERY_RUN)]) for at, kill in enumerate(KILLS)),
        *((kill, "mysql") for kill in KILLS),
    ],
    ids=lambda value: label(value) if isinstance(value, Kill) else value,
)
def test_killed_once(rig_of: Callable[[str], KillRig], kill: Kill, engine: str) -> None:
    reachable(kill.point)
    if kill.what == "gc":
        on_disk("there `gc` keeps what is younger than a day")
    assert rig_of(engine).kill(kill.point, kill.what), "the point was not reached"


@pytest.mark.parametrize("what", ["load", "flip"])
def test_killed_at_every_small_file(rig_of: Callable[[str], KillRig], what: str) -> None:
    """Keys, notes, staging, history, the table of versions: whatever is written, one by one."""
    reachable(Point.SMALL_FILE_WRITTEN)
    times = 0
    while rig_of("sqlite").kill(Point.SMALL_FILE_WRITTEN, what, nth=times + 1):
        times += 1
    assert times >= 5


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_killed_again_and_again(rig_of: Callable[[str], KillRig]) -> None:
    for run in range(RUNS):
        for at, kill in enumerate(KILLS):
            rig = rig_of(ENGINES[(at + run) % len(ENGINES)])
            rig.kill(kill.point, kill.what, nth=1 + run // len(ENGINES) % kill.times)


def test_every_point_is_killed_at() -> None:
    """Points of views and of Spark's tasks are in `test_killed_views` and `test_killed_tasks`, one
    of tables that are not as they were left in `test_killed_trust`."""
    points = {kill.point for kill in KILLS} | ON_SPARK | {Point.VERSION_REPUBLISHED}
    assert points == {point for agent in {type(p) for p in points} for point in agent}
    source, warehouse = (
        sum(p.value.startswith(f"{agent}.") for p in points) for agent in ("source", "warehouse")
    )
    assert source >= 8
    assert warehouse >= 12


def test_the_rig_notices(rig_of: Callable[[str], KillRig]) -> None:
    """What a kill might leave is found: another row, a file that belongs to nothing."""
    rig = rig_of("sqlite")
    rig.converge()
    rig.check((rig.pair.version("t"), rig.published()))
    version, rows = rig.pair.version("t"), rig.published()
    assert version is not None
    with pytest.raises(Violation, match="the rows"):
        rig.check((version, rows - Counter([next(iter(rows))])))
    with pytest.raises(Violation, match="the version"):
        rig.check((version + 1, rows))
    stray = rig.pair.root / "_driftline" / "stray"
    stray.write_bytes(b"")
    with pytest.raises(Violation, match="_driftline/stray"):
        rig.check((rig.pair.version("t"), rig.published()))
    stray.unlink()
    rig.check((rig.pair.version("t"), rig.published()))

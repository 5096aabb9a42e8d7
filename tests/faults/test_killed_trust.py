"""A refresh that withdraws trust is killed before, between and after its notes and its commits.

What is withdrawn, and what must be true afterwards: `tests/harness/trust_rig.py`. One kill in each
phase of each case here, KILLS over all points by the soak.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.fault_rig import Violation, reachable
from tests.harness.legacy import PostgresLegacy, SqliteLegacy
from tests.harness.servers import PostgreSQL
from tests.harness.trust_rig import CASES, POLICIES, PolicyRig, TrustRig
from warehouse_agent.failpoints import WarehouseFailpoint

KILLS = 500
# A file that is about to be named, or was, by its number: notes are among the first.
POINTS = (
    *((WarehouseFailpoint.SMALL_FILE_WRITTEN, nth) for nth in (1, 2, 3, 4)),
    *((WarehouseFailpoint.SMALL_FILE_NAMED, nth) for nth in (1, 2, 3, 4)),
    *((WarehouseFailpoint.VERSION_REPUBLISHED, nth) for nth in (1, 2)),
    (WarehouseFailpoint.PREPARED, 1),
    (WarehouseFailpoint.COMMITTING, 1),
    (WarehouseFailpoint.COMMITTED, 1),
    (WarehouseFailpoint.STAGING_CLEARED, 1),
    (WarehouseFailpoint.NOTES_WRITTEN, 1),
    (WarehouseFailpoint.HISTORY_WRITTEN, 1),
)
EVERY_RUN = (
    ("a mark that no longer fits", WarehouseFailpoint.COMMITTING, 1),
    ("a mark that no longer fits", WarehouseFailpoint.COMMITTED, 1),
    ("a restored table", WarehouseFailpoint.SMALL_FILE_NAMED, 1),
    ("a restored table", WarehouseFailpoint.VERSION_REPUBLISHED, 1),
    ("a restored table with a mark", WarehouseFailpoint.VERSION_REPUBLISHED, 2),
    ("a part", WarehouseFailpoint.COMMITTED, 1),
    ("damage that is noted", WarehouseFailpoint.SMALL_FILE_WRITTEN, 1),
    ("damage that is repaired", WarehouseFailpoint.COMMITTED, 1),
    ("other columns", WarehouseFailpoint.COMMITTED, 1),
    ("another program's maintenance", WarehouseFailpoint.VERSION_REPUBLISHED, 1),
    ("another program's rows", WarehouseFailpoint.SMALL_FILE_NAMED, 1),
    ("another program's rows", WarehouseFailpoint.VERSION_REPUBLISHED, 1),
    ("declared columns of ours", WarehouseFailpoint.SMALL_FILE_WRITTEN, 2),
    ("declared columns of ours", WarehouseFailpoint.SMALL_FILE_NAMED, 2),
    ("declared columns of ours", WarehouseFailpoint.VERSION_REPUBLISHED, 1),
    ("declared columns of ours, and other rows", WarehouseFailpoint.COMMITTED, 1),
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrustRig]:
    folder = tmp_path_factory.mktemp("trust")
    with TrustRig(SqliteLegacy(folder / "erp.db"), folder) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("case", "point", "nth"), EVERY_RUN)
def test_killed_once(rig: TrustRig, case: str, point: WarehouseFailpoint, nth: int) -> None:
    reachable(point)
    assert rig.kill(case, point, nth=nth), "the point was not reached"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["r", "m"])
def test_killed_before_and_after_a_commit(rig: TrustRig, name: str) -> None:
    """What was noted of a version that was not committed would be said of another one."""
    assert rig.kill_twice(name), "a point was not reached"


@pytest.mark.postgresql
@pytest.mark.parametrize("point", [WarehouseFailpoint.COMMITTING, WarehouseFailpoint.COMMITTED])
def test_killed_after_other_policies(
    postgresql: PostgreSQL, tmp_path: Path, point: WarehouseFailpoint
) -> None:
    with PolicyRig(PostgresLegacy(postgresql), tmp_path) as rig:
        assert rig.kill(POLICIES, point), "the point was not reached"


@pytest.mark.slow
def test_the_rig_notices(rig: TrustRig) -> None:
    """A note, or a version, that claims a later instant than that of its rows."""
    assert rig.refresh("r") is None
    rig.check_claims("r")
    (version, record), *_ = rig.entries("r")
    rig.edit("r")
    notes = rig.notes("r")
    later = rig.states["r"][-1][0].isoformat()
    lie = {**notes, "checked": {**notes["checked"], "version": version, "as_of": later}}
    write(rig, lie)
    with pytest.raises(Violation, match="the note"):
        rig.check_claims("r")
    write(rig, notes)
    rig.check_claims("r")
    assert record["version"] == version


def write(rig: TrustRig, notes: dict[str, object]) -> None:
    file = rig.pair.root / "_driftline" / "fragments" / "r.json"
    file.write_text(json.dumps(notes))


@pytest.mark.soak
@pytest.mark.postgresql
@pytest.mark.timeout(14_400)
def test_killed_again_and_again(rig: TrustRig, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """KILLS kills, over all cases and points in turn."""
    kills = 0
    with PolicyRig(PostgresLegacy(postgresql), tmp_path) as other:
        every = itertools.product((*CASES, POLICIES), POINTS)
        for case, (point, nth) in itertools.cycle(every):
            kills += (other if case == POLICIES else rig).kill(case, point, nth=nth)
            if kills == KILLS:
                break
    print(f"{kills} kills")

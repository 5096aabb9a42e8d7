"""The agent lets others of its machine go first: what the kernel says of a running one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from source_agent.scan.processors import NICENESS
from tests.harness.agents import configuration, make_orders
from tests.harness.pair import SourceProcess

AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.starts
def test_serve_gives_way(tmp_path: Path) -> None:
    database = tmp_path / "orders.db"
    make_orders(database, [(1, "a")])
    configuration(tmp_path, database, certs=None)
    with SourceProcess(tmp_path / "source.toml") as source:
        pid = source.process.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == NICENESS
        if not AUTOGROUP.exists():
            pytest.skip("this kernel shares processors by process alone")
        assert Path(f"/proc/{pid}/autogroup").read_text().split()[-1] == str(NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) < NICENESS

"""Dump files pass the engines' suite: what a file has none of is refused, or said.

Types of its own are tested in `test_reads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from source_agent.cli.check import as_text, check
from source_agent.config import load
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from tests.harness.legacy_dump import OfDump
from tests.source_agent.engines.dump.folders import Accounts


@pytest.fixture
def legacy(tmp_path: Path) -> Iterator[OfDump]:
    made = OfDump(tmp_path / "erp")
    yield made
    made.close()


def test_check_speaks_of_files(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "erp")
    accounts.put(b"id,name,balance\n1,x,2.50\n")
    (tmp_path / "source.toml").write_text(
        f'[database]\nurl = "dump:///{accounts.folder}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[relations.accounts]\n'
        f'files = "a-*.csv"\nformat = "{accounts.format}"\nsettle_s = 0.000001\nkey = ["id"]\n'
        'derive = ["rows"]\n'
    )
    config = load(tmp_path / "source.toml")
    said = as_text(check(config, connect(config.database.url, None, Limits())))
    assert "reads    exact; files are opened for reading alone" in said
    assert "login    the account of this process" in said
    assert "rows by id, name, balance" in said
    assert "1 of 1 relation can be served" in said

"""Dump files pass the engines' suite: what a file has none of is refused, or said.

Types of its own are tested in `test_reads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline.errors import ConfigurationError

from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from tests.harness.legacy_dump import OfDump
from tests.harness.source_commands import source_command
from tests.source_agent.engines.dump.folders import Accounts


@pytest.fixture
def legacy(tmp_path: Path) -> Iterator[OfDump]:
    made = OfDump(tmp_path / "erp")
    yield made
    made.close()


def checked(folder: Path, lines: str) -> str:
    """What `check` says of a folder with one relation, which has these lines too."""
    accounts = Accounts(folder / "erp")
    accounts.put(b"id,name,balance\n1,x,2.50\n")
    (folder / "source.toml").write_text(
        f'[database]\nurl = "dump:///{accounts.folder}"\n'
        '[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n[relations.accounts]\n'
        f'files = "a-*.csv"\nformat = "{accounts.format}"\nsettle_s = 0.000001\nkey = ["id"]\n'
        f"{lines}\n"
    )
    return source_command(folder / "source.toml", "check", "--verbose").stdout


def test_check_speaks_of_files(tmp_path: Path) -> None:
    said = checked(tmp_path, 'derive = ["rows"]')
    assert "reads    exact; files are opened for reading alone" in said
    assert "login    the account of this process" in said
    assert "rows by id, name, balance" in said
    assert "1 of 1 relation can be served" in said


@pytest.mark.parametrize("setting", ["rows_by_key = 1000", 'scan = "never"'])
def test_reads_by_key_are_refused_by_name(tmp_path: Path, setting: str) -> None:
    said = checked(tmp_path, setting)
    assert setting.partition(" = ")[0] in said
    assert "needs rows that can be read by a unique index of the key (id)" in said
    assert "0 of 1 relation can be served" in said


def test_a_marker_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"accounts\.marker: Files are read whole"):
        checked(tmp_path, 'marker = { column = "id" }')

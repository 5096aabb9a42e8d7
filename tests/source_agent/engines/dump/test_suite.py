"""Dump files pass the engines' suite: what a file has none of is refused, or said.

Types of its own are tested in `test_reads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from source_agent.engines.conformance.suite import *  # noqa: F403 - collected, with this `legacy`
from tests.harness.legacy_dump import OfDump


@pytest.fixture
def legacy(tmp_path: Path) -> Iterator[OfDump]:
    made = OfDump(tmp_path / "erp")
    yield made
    made.close()

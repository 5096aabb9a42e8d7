"""Every fault of docs/guarantees.md names tests that exist, or says why none shows it."""

from __future__ import annotations

import re

import pytest

from tests import ROOT
from tests.project.test_docs import page, rows_of_tables
from tests.project.test_threat_model import NONE, TEST, named_in

FAULTS = {
    cells[0]: cells[2]
    for cells in rows_of_tables(page("guarantees.md"))
    if re.fullmatch(r"F\d+", cells[0])
}


def test_every_fault_has_a_row() -> None:
    assert list(FAULTS) == [f"F{number}" for number in range(1, 34)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_shown_by_tests_or_by_none(fault: str) -> None:
    shown = FAULTS[fault]
    named = TEST.findall(shown)
    assert bool(named) != bool(NONE.fullmatch(shown)), shown
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert test in named_in(path), f"{file}::{test}"

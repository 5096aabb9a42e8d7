"""What several attempts at one run mean together."""

from __future__ import annotations

import pytest

from warehouse_agent.planning.attempts import Stuck
from warehouse_agent.runs.source_run import _outlasted


@pytest.mark.parametrize("is_load", [True, False])
def test_a_scan_that_outlasts_the_line(is_load: bool) -> None:
    """Tiles compare a published version; a first load has none."""
    said = _outlasted(Stuck(4, 31.4, 1073.2), is_load=is_load)
    assert said is not None
    message, remedy = said
    assert message == (
        "The line broke 4 times in turn before a new row came, each time within 31 s, and a scan of"
        " the relation takes about 1,073 s."
    )
    assert ("`incremental`" in remedy) is not is_load


@pytest.mark.parametrize("stuck", [Stuck(1, 31.0, 73.0), Stuck(4, 74.0, 73.0), Stuck(4, 9.0, None)])
def test_another_cause_keeps_its_own_words(stuck: Stuck) -> None:
    assert _outlasted(stuck, is_load=True) is None

"""What becomes of a view when its fragments move."""

from __future__ import annotations

import pytest

from tests.warehouse_agent.visible_versions.test_members import view as member
from warehouse_agent.components.view_decision import (
    CurrentView,
    Decision,
    NewestViewVersion,
    StaleView,
    ViewAdoption,
    ViewEvaluation,
    decide,
    torn,
)
from warehouse_agent.config import View
from warehouse_agent.visible_versions.members import Member

VIEW = View("v", "SELECT …", inputs=("a", "b", "a"))
AT = member("v", 7, a=3, b=1)
MADE = NewestViewVersion(7, {"a": 3, "b": 1}, has_recipe=True)


@pytest.mark.parametrize(
    ("a", "b", "known", "head", "expected"),
    [
        (3, 1, AT, MADE, CurrentView()),
        (4, 1, AT, MADE, ViewEvaluation()),
        (3, 1, None, None, ViewEvaluation()),
        (3, 1, AT, NewestViewVersion(7, {"a": 3, "b": 1}, has_recipe=False), ViewEvaluation()),
        (3, 1, AT.marked("why", "now"), MADE, ViewAdoption()),
        (4, 1, AT, NewestViewVersion(8, {"a": 4, "b": 1}, has_recipe=True), ViewAdoption()),
        (4, 1, AT, NewestViewVersion(8, {"a": 4, "b": 2}, has_recipe=True), ViewEvaluation()),
        (3, 1, AT, NewestViewVersion(8, {"a": 4, "b": 1}, has_recipe=True), ViewEvaluation()),
        (3, 1, None, MADE, ViewAdoption()),
        (None, 1, None, None, StaleView("its input a was never published")),
        (3, None, AT, MADE, StaleView("its input b was never published")),
    ],
)
def test_decisions(
    a: int | None,
    b: int | None,
    known: Member | None,
    head: NewestViewVersion | None,
    expected: Decision,
) -> None:
    assert decide(VIEW, {"a": a, "b": b}, {}, known, head) == expected


def test_a_view_over_a_stale_view_stays_behind() -> None:
    found = decide(VIEW, {"a": 3, "b": 1}, {"b": "division by zero"}, AT, MADE)
    assert found == StaleView("its input b is stale")


@pytest.mark.parametrize(
    ("chosen_by", "why"),
    [
        ({}, None),
        ({"a": (), "c": ()}, None),
        ({"a": ("b",), "b": ("a",)}, None),
        ({"a": ("b", "c")}, "rows of a, of 1, were chosen by those of c, which is of 2: "),
        ({"b": ("a",), "c": ("b",)}, "rows of c, of 2, were chosen by those of b, which is of 1: "),
    ],
)
def test_rows_that_were_chosen_in_another_snapshot(
    chosen_by: dict[str, tuple[str, ...]], why: str | None
) -> None:
    found = torn(chosen_by, {"a": "1", "b": "1", "c": "2"}.__getitem__)
    assert (found is None) if why is None else (found or "").startswith(why)

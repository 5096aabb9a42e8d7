"""The part of a table that is compared by groups where its source allows no scan now (`plan`).

A fragment whose settings ask for all rows is refused then. What its parts would cost, and which
changes they would find, is said beside the refusal, with the settings that allow them. The price is
the one of a refresh with these settings.

The rows in a part are those most likely to have changed, by the statistics in our files (Lu, Liu
and Hyland, section V.A and B). `plan` reads them where that needs no Spark; else all rows are taken
to be equally likely, which says less than what a part finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from warehouse_agent.config import Proof, Require
from warehouse_agent.history.forecast_inputs import Situation, forecasts
from warehouse_agent.methods.groups.opening import budget_of
from warehouse_agent.methods.registry import likelihoods, predicted
from warehouse_agent.planning import candidates, group_selection
from warehouse_agent.planning.candidates import Candidate
from warehouse_agent.planning.choice import CHANGE_SHARE, Method
from warehouse_agent.planning.group_selection import Histogram
from warehouse_agent.planning.plan_inputs import Part, PlanInputs, Whole
from warehouse_agent.refresh import prepare
from warehouse_agent.tasks.steps import Steps

SETTINGS = {"require": Require.FUZZY.value, "proof": Proof.PART.value}


@dataclass(frozen=True, slots=True)
class PartForecast:
    """Forecast of a part.

    Attributes:
        way: its price.
        changed: rows of ours that are expected to have been updated or deleted.
        found: of these, the ones that it is expected to find.
        finds_all: the probability that it finds all of them.
        new_rows_max: new rows behind the greatest key that it reads, at most.
        by_statistics: rows are chosen by their statistics; False: these were not read, and all rows
            are taken to be equally likely.
        settings: that the fragment needs; empty: it has them.
    """

    way: Candidate
    changed: float
    found: float
    finds_all: float
    new_rows_max: int
    by_statistics: bool
    settings: Mapping[str, str]


def part_expected(known: PlanInputs, at: Situation, steps: Steps | None) -> PartForecast | None:
    """Return the part that a refresh compares, or would compare if its fragment allowed one; None:
    all rows may be compared, or its settings ask for another way.

    Args:
        steps: by which statistics of rows are read; None: they are not.
    """
    part = known.scope if isinstance(known.scope, Part) else offered(known)
    if part is None:
        return None
    known_of_part = replace(known, read_at_most=part.rows_max)
    if known_of_part.refusal is not None:
        return None
    changes, expected = forecasts(known)
    outlook = prepare.outlook_of(at.base, changes, prepare.stamp_of(at))
    counted = None
    if steps is not None and at.base is not None:
        counted = likelihoods(steps, at.base.sound, at.base.layout, outlook)
    share = CHANGE_SHARE if outlook is None else outlook.share
    budget = budget_of(part.rows_max, is_by_key=not known.by_index)
    deleted = candidates.p_delete(known, expected)
    caught = group_selection.caught(counted or Histogram.even(known.ours, share), budget, deleted)
    return PartForecast(
        way=predicted(known_of_part, expected),
        changed=round(caught.changed, 2),
        found=round(caught.found, 2),
        finds_all=caught.finds_all,
        new_rows_max=budget.new,
        by_statistics=counted is not None,
        settings=SETTINGS if known.read_at_most is None else {},
    )


def offered(known: PlanInputs) -> Part | None:
    """Return the part that may be compared in place of all rows; None: these may be compared, or
    settings ask for another way than by groups."""
    may_scan = known.allowance is None or known.allowance.may_scan(known.now)
    if may_scan or not known.ours or known.rows_lost or known.allowance is None:
        return None
    if known.forced not in (None, Method.GROUP) or known.marker is not None:
        return None
    if not isinstance(known.scope, Whole) or known.refusal is None:
        return None
    rows_max = known.allowance.part(None, known.now)
    return None if rows_max is None else Part(rows_max)

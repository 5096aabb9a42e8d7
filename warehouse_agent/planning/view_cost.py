"""Choose how a view follows its inputs: recomputed, or maintained by affected keys. Pure.

Each phase has a price: fixed seconds, and seconds for each row that it reads, joins or writes. The
fixed ones are most of it in small views, which are therefore recomputed. The defaults were measured
(benchmarks/views/maintenance.py); what a phase took in earlier refreshes of the view, over what the
defaults say, is its *factor*, which is noted beside the history. It holds what the defaults do not
know: the machine, the width of rows, expressions, skew.

A wrong factor must not prevent its own correction: a method that seems expensive is not taken, and
so never measured again. So whenever one method is taken, the factors of the other are drawn towards
its factors (DRAWN), by which the machine is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

FACTOR_LEAST, FACTOR_MOST = 0.02, 50.0
WEIGHT = 0.5  # of a new measurement, of logarithms
DRAWN = 0.1  # of the way, at each refresh by the other method
FILE_S = 0.002  # of a file that is opened


class ViewMethod(StrEnum):
    """The ways in which the rows of a view's version are made."""

    RECOMPUTE = "recompute"
    INCREMENTAL = "incremental"


# The phases of each method, by the names that reports have.
PHASES = {
    ViewMethod.RECOMPUTE: ("evaluate",),
    ViewMethod.INCREMENTAL: ("reduce", "join", "rewrite", "check"),
}


@dataclass(frozen=True, slots=True)
class ViewWork:
    """The amounts on which prices depend: rows and files.

    Attributes:
        input_rows, input_files: of all occurrences, a relation counted as often as it occurs.
        view_rows, view_files: of the published version.
        changed_rows: in the feeds of all occurrences.
        whole_rows: of the occurrences that go into the query whole.
    """

    input_rows: int
    input_files: int
    view_rows: int
    view_files: int
    changed_rows: int = 0
    whole_rows: int = 0

    def default_s(self, phase: str) -> float:
        """Return the seconds of a phase by the default prices."""
        rows, changed, files = self.input_rows, self.changed_rows, self.input_files * FILE_S
        match phase:
            case "evaluate":
                return 1.5 + files + rows * 1.0e-6 + self.view_rows * 4.0e-6
            case "reduce":
                return 0.1 + files + rows * 0.1e-6 + changed * 10e-6
            case "join":
                return 0.6 + changed * 20e-6 + self.whole_rows * 1.0e-6
            case "rewrite":
                return 0.05 + self._touched() * self.view_rows * 1.5e-6 + changed * 10e-6
            case "check":
                return 1.0 + files + rows * 0.6e-6 + self.view_rows * 0.3e-6
        raise AssertionError(phase)

    def _touched(self) -> float:
        """Return the expected share of the view's files in which some row is affected."""
        files = max(self.view_files, 1)
        return 1 - math.pow(1 - 1 / files, self.changed_rows) if files > 1 else 1.0


@dataclass(frozen=True, slots=True)
class ViewChoice:
    """The expected seconds of both methods, and the cheaper one."""

    recompute_s: float
    incremental_s: float

    @property
    def method(self) -> ViewMethod:
        """Return the cheaper method."""
        is_less = self.incremental_s < self.recompute_s
        return ViewMethod.INCREMENTAL if is_less else ViewMethod.RECOMPUTE

    @property
    def why(self) -> str:
        """Return the comparison in words."""
        return (
            f"expected to take {self.incremental_s:.1f} s incrementally and {self.recompute_s:.1f}"
            " s recomputed"
        )


def choose(work: ViewWork, learned: Mapping[str, float]) -> ViewChoice:
    """Return the expected seconds of both methods. A phase that was never measured has the mean
    factor of those that were: it is the same machine."""
    mean = _mean(learned)

    def seconds(method: ViewMethod) -> float:
        return sum(work.default_s(p) * learned.get(p, mean) for p in PHASES[method])

    return ViewChoice(seconds(ViewMethod.RECOMPUTE), seconds(ViewMethod.INCREMENTAL))


def learnt(
    before: Mapping[str, float], work: ViewWork, seconds: Mapping[str, float]
) -> dict[str, float]:
    """Return the factors by phase after a refresh whose phases took `seconds`."""
    measured = {
        phase: bounded(seconds[phase] / work.default_s(phase))
        for phases in PHASES.values()
        for phase in phases
        if seconds.get(phase)
    }
    after = dict(before)
    for phase, one in measured.items():
        after[phase] = before.get(phase, one) ** (1 - WEIGHT) * one**WEIGHT
    mean = _mean(measured)
    for phases in PHASES.values():
        if not any(phase in measured for phase in phases):
            for phase in phases:
                if phase in after:
                    after[phase] = after[phase] ** (1 - DRAWN) * mean**DRAWN
    return after


def _mean(factors: Mapping[str, float]) -> float:
    """Return the geometric mean of factors; 1 if there are none."""
    return math.exp(sum(map(math.log, factors.values())) / len(factors)) if factors else 1.0


def bounded(factor: float) -> float:
    """Return a factor within what is possible."""
    return min(max(factor, FACTOR_LEAST), FACTOR_MOST)

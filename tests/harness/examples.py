"""How many examples a property test draws, by the profile of the run."""

from __future__ import annotations

from hypothesis import settings

EXAMPLES_OF_A_RUN = 25
EXAMPLES_OF_COUNTS = 50  # of a profile whose properties draw the counts that they give


def examples(count: int) -> settings:
    """Return settings that draw `count` examples where the profile draws 50, in proportion else."""
    share = settings().max_examples / EXAMPLES_OF_COUNTS
    return settings(max_examples=max(3, round(count * share)))

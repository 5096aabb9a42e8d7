"""How many examples a property test draws, by the profile of the run."""

from __future__ import annotations

from hypothesis import settings

DEFAULT_EXAMPLES = 50  # of the profile that counts are given for


def examples(count: int) -> settings:
    """Return settings that draw `count` examples in a normal run, in proportion in others."""
    share = settings().max_examples / DEFAULT_EXAMPLES
    return settings(max_examples=max(3, round(count * share)))

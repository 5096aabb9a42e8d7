"""What the tests of this room share: a remedy that was printed is the one that the sources have."""

from __future__ import annotations

from driftline.errors import DriftlineError

from tests.remedies.catalogue import matches, remedies


def told(error: DriftlineError | str, remedy: str) -> str:
    """Check that what an error prints is this remedy of the catalogue; return what it printed.

    Args:
        error: the error, or the remedy that a command printed.
    """
    printed = error if isinstance(error, str) else error.remedy
    assert remedy in remedies(), f"no source has the remedy {remedy!r}"
    assert matches(remedy, printed), f"{printed!r} is not {remedy!r}"
    return printed

"""Asks for a simulated wide area link; the link itself is `tests/wan.py`."""

from __future__ import annotations

import pytest

from tests import wan
from tests.absent import absent


@pytest.fixture(scope="session")
def wan_available() -> None:
    """Skips, loudly, where no namespaces can be made."""
    reason = wan.available()
    if reason is not None:
        absent("SIMULATED LINK", reason, is_required_in_ci=False)

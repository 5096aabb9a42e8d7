"""What a test does without a server, a kernel feature or a program that it needs."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def absent(what: str, reason: str, *, is_required_in_ci: bool) -> NoReturn:
    """Skips with a reason in capitals, which `-ra` prints at the end. What can be installed is
    required in CI, so that a suite which silently tests less cannot pass there; what depends on
    the kernel or the container is not."""
    if is_required_in_ci and os.environ.get("CI") == "true":
        pytest.fail(f"NO {what}, and in CI there must be one: {reason}", pytrace=False)
    pytest.skip(f"NO {what}, NOT TESTED: {reason}")


def could_be_installed() -> bool:
    """Return True if `tests/run` may install packages of the platform (`ensure`): what these hold
    is there then, unless apt does not offer it."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None

"""What a test does about a server, a kernel feature or a program that it needs and may not have."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from tests import ROOT

# What must not be skipped, in small letters and with commas between: "mysql", "firebird 4"; "all".
REQUIRED = "DRIFTLINE_REQUIRED"


@functools.cache
def set_up(name: str) -> None:
    """Let `tests/setup` find or install something: all that it needs, a test asks for itself."""
    with Path(tempfile.gettempdir(), f"driftline-setup-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([ROOT / "tests/setup", name], stdout=subprocess.DEVNULL, check=False)


def absent(what: str, reason: str, *, is_required_in_ci: bool) -> NoReturn:
    """Skips with a reason in capitals, which `-ra` prints at the end. What can be installed is
    required in CI, so that a suite which silently tests less cannot pass there; what depends on
    the kernel, the container or a release of Debian that changes every day is not, unless the
    environment names it in `DRIFTLINE_REQUIRED`."""
    if is_required_in_ci and os.environ.get("CI") == "true":
        pytest.fail(f"NO {what}, and in CI there must be one: {reason}", pytrace=False)
    if {"all", what.lower()} & set(os.environ.get(REQUIRED, "").split(",")):
        pytest.fail(f"NO {what}, and {REQUIRED} names it: {reason}", pytrace=False)
    pytest.skip(f"NO {what}, NOT TESTED: {reason}")


def needs_release(release: int, first: int, what: str) -> None:
    """Skip what the server of this run is too old for; a usual run has one that is not."""
    if release < first:
        pytest.skip(f"needs PostgreSQL {first}: {what}")


def could_be_installed() -> bool:
    """Return True if `tests/setup` may install packages of the platform: what these hold
    is there then, unless apt does not offer it."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None

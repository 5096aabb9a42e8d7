"""A disk of a few MiB, which a test fills."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.absent import absent


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a tmpfs of so many MiB; called again, it is resized. Only root can."""
    folder = tmp_path / "disk"
    folder.mkdir()
    was_mounted = False

    def mount(mib: int) -> Path:
        nonlocal was_mounted
        options = f"size={mib}m" + (",remount" if was_mounted else "")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            absent("SMALL DISK", done.stderr.strip(), is_required_in_ci=False)
        was_mounted = True
        return folder

    if os.geteuid() != 0:
        absent("SMALL DISK", "only root can mount one", is_required_in_ci=False)
    yield mount
    if was_mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)

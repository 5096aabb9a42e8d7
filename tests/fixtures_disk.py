"""A disk of a few MiB, which a test fills."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.absent import absent


class Mount(Protocol):
    """Mount a tmpfs of `mib` MiB, at a folder of the test or at another; again: resize it."""

    def __call__(self, mib: int, at: Path | None = None) -> Path: ...


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Mount]:
    """A disk that a test fills. Only root can mount one."""
    mounted: list[Path] = []

    def mount(mib: int, at: Path | None = None) -> Path:
        folder = at or tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        options = f"size={mib}m" + (",remount" if mounted else "")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            absent("SMALL DISK", done.stderr.strip(), is_required_in_ci=False)
        mounted[:] = [folder]
        return folder

    if os.geteuid() != 0:
        absent("SMALL DISK", "only root can mount one", is_required_in_ci=False)
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)

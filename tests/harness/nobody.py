"""An account without rights, for tests of files that may not be read or written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become an account without rights"
)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Let all threads of this process have no rights but those of everybody."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


def give(folder: Path) -> None:
    """Make an account without rights the owner of all that is below a folder."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

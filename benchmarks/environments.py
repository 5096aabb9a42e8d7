"""Virtual environments of tools that are compared: each of its own, made once, pinned.

So a tool gets the versions that it wants, and none of them is a package of the project.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VENVS = Path(".cache/venvs")  # below the working folder


def program(name: str, of: str) -> Path:
    """Return where a program of the environment `of` is."""
    return (VENVS / of / "bin" / name).absolute()


def missing(of: str, requirements: Sequence[str], *, install: bool = True) -> str | None:
    """Return why the environment `of` has not all requirements, or None; make it if it may be.

    Args:
        of: its name.
        requirements: as pip reads them, each with its version. Others are another environment.
        install: it may be made now.
    """
    wanted = "\n".join(requirements)
    made = VENVS / of / "requirements"
    if made.exists() and made.read_text() == wanted:
        return None
    if not install:
        return f"not installed, and nothing is to be: {', '.join(requirements)}"
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(VENVS / of)],
        [str(program("pip", of)), "install", "--quiet", *requirements],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"pip could not install {', '.join(requirements)}"
    made.write_text(wanted)
    return None

"""Say to a source on this machine which process the warehouse is (`driftline.same_machine`).

It rests for others who need the processors, not for its own warehouse. What is said tells a source
elsewhere nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from driftline.same_machine import METADATA, claim

_PROC: Final = Path("/proc")


def metadata(proc: Path = _PROC) -> tuple[tuple[str, bytes], ...]:
    """Return metadata of a call with our claim; empty where the system does not name itself."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        space = (proc / "self/ns/pid").readlink()
    except OSError:
        return ()
    return ((METADATA, claim(f"{boot} {space}", _topmost(proc))),)


def _topmost(proc: Path) -> int:
    """Return the process that started all of the warehouse's: ours, or the Java of spark-submit,
    whose child we are."""
    parent = os.getppid()
    try:
        is_java = (proc / str(parent) / "comm").read_text().strip() == "java"
    except OSError:
        return os.getpid()
    return parent if is_java else os.getpid()

"""Read from Linux how long a thread was ready to run and had no processor.

The file is one of the thread's own, so it is there in a sandbox and in a container, too. Elsewhere
nothing was waited for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")  # "run wait slices", in nanoseconds


def queued_s() -> float:
    """Return those seconds of this thread since it began; 0 where the system does not say."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0

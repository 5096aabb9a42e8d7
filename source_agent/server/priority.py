"""Let the database's own processes go first on a machine that the agent shares with it.

Without it, a refresh on the two cores of a database multiplies the time that short transactions
wait for a processor (benchmarks/RESULTS.md, "A live workload beside a refresh"). An agent that is
alone takes what it wants, as before.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

NICENESS: Final = 10
# Linux shares processors between sessions first, and by niceness only within one.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def give_way() -> None:
    """Lower the priority of this process, its threads to come and its children.

    A priority that is lower already stays. Where the platform does not let a process do it, as in
    the sandbox of the unit, which sets the priority itself, nothing happens.
    """
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    # The group of a session that is not ours alone is not ours to change.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(NICENESS))

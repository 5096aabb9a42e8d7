"""Read from Linux how processors are used: how long a thread waited for one, and who has them.

The file of a thread is its own, so it is there in a sandbox and in a container, too. Elsewhere
nothing was waited for. Who uses the processors can be read where the system shows its processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_SCHEDSTAT: Final = PROC / "thread-self/schedstat"  # "run wait slices", in nanoseconds
_TICKS_S: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# Columns of the line `cpu` of /proc/stat that count work of this machine; idle, iowait and steal
# do not, and a guest's are counted by its user's.
_WORKED: Final = (0, 1, 2, 5, 6)
# Fields of /proc/PID/stat behind the name: the parent, and the ticks of the process and of its
# children that have ended.
_PARENT, _USED = 1, slice(11, 15)


def queued_s() -> float:
    """Return for how long this thread was ready and had no processor since it began, in seconds; 0
    where the system does not say."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A process: its parent, its name, and the seconds of processors that it used, with those of
    its children that have ended."""

    parent: int
    name: str
    used_s: float


@dataclass(frozen=True, slots=True)
class ProcessorUsage:
    """The use of a machine's processors since it started.

    Attributes:
        processors: their number.
        worked_s: seconds in which they worked, for whomever, added up.
        processes: that the system shows, by their numbers.
    """

    processors: int
    worked_s: float
    processes: Mapping[int, ProcessUsage]

    def tree(self, roots: Iterable[int]) -> set[int]:
        """Return processes and all that they started, of those that are shown."""
        children: dict[int, list[int]] = {}
        for number, process in self.processes.items():
            children.setdefault(process.parent, []).append(number)
        pids, left = set[int](), [one for one in roots if one in self.processes]
        while left:
            if (one := left.pop()) not in pids:
                pids.add(one)
                left += children.get(one, ())
        return pids


def usage(proc: Path = PROC) -> ProcessorUsage | None:
    """Return the use of the processors now; None where the system does not show it."""
    try:
        lines = (proc / "stat").read_text().splitlines()
        ticks = [int(word) for word in lines[0].split()[1:]]
        worked = sum(ticks[column] for column in _WORKED)
    except (OSError, ValueError, IndexError):
        return None
    processors = sum(line.startswith("cpu") for line in lines) - 1
    if processors < 1 or not worked:  # a sandbox shows zeros
        return None
    return ProcessorUsage(processors, worked / _TICKS_S, dict(_processes(proc)))


def used_since(before: ProcessorUsage, now: ProcessorUsage, roots: Iterable[int]) -> float:
    """Return the seconds that processes, and what they started, used between two looks.

    The time of a child that has ended is its parent's, so what it had used before is not new.
    """
    roots = list(roots)
    theirs = now.tree(roots)
    total = sum(now.processes[one].used_s for one in theirs)
    for one in before.tree(roots):
        if one in theirs or one not in now.processes:
            total -= before.processes[one].used_s
    return max(total, 0.0)


def machine(proc: Path = PROC) -> str:
    """Return what names this machine, since it started, and the space in which its processes are
    numbered; empty where the system does not say."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _processes(proc: Path) -> Iterator[tuple[int, ProcessUsage]]:
    for number in os.listdir(proc):
        if not number.isdigit():
            continue
        try:
            # The name is in brackets, and may have brackets and spaces.
            begin, _, rest = (proc / number / "stat").read_text("utf-8", "replace").rpartition(")")
            fields = rest.split()
            used = sum(int(word) for word in fields[_USED]) / _TICKS_S
            yield int(number), ProcessUsage(int(fields[_PARENT]), begin.partition("(")[2], used)
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or is hidden


NICENESS: Final = 10
# Linux shares processors between sessions first, and by niceness only within one.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def give_way() -> None:
    """Lower the priority of this process, its threads to come and its children.

    A priority that is lower already stays. Where the platform does not let a process do it, as in
    the sandbox of the unit, which sets the priority itself, nothing happens.

    Without it, a refresh on the two cores of a database multiplies the time that short
    transactions wait for a processor (docs/results/source.md, "A live workload beside a refresh").
    An agent that is alone takes what it wants, as before.
    """
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) < NICENESS:
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    # The group of a session that is not ours alone is not ours to change.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(NICENESS))

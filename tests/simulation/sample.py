"""Many worlds, one after the other, until there were enough refreshes."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from tests.simulation.clock import virtual_time
from tests.simulation.world import Options, Tally, World, lies_of

COMMANDS = 8  # of a world; each refreshes its tables
MEMORY = Path("/dev/shm")


def run_worlds(
    first: int,
    refreshes: int,
    *,
    on_delta: bool = False,
    parts: bool = False,
    lies: bool = False,
    happens: Collection[str] = (),
) -> Tally:
    """Run worlds from the seed `first` on, until they had so many refreshes, and until each of
    `happens` did, but not for more than twice as many.

    With `parts` only worlds whose tables are compared in part, with `lies` only those in which
    notes claim more, or less, than the table holds.

    Raises:
        AssertionError: a world broke a promise; its text has what repeats it.
    """
    tally, seed = Tally(), first
    gc.collect()
    gc.freeze()  # what the modules hold is not looked through again and again
    with virtual_time():
        while tally.refreshes < refreshes or (
            tally.refreshes < 2 * refreshes and not tally.happened.keys() >= set(happens)
        ):
            is_partial = not parts or Options.of(seed).read_at_most is not None
            if is_partial and (not lies or lies_of(seed) is not None):
                run_world(seed, tally, on_delta=on_delta)
            seed += 1
    return tally


def run_world(seed: int, tally: Tally, *, commands: int = COMMANDS, on_delta: bool = False) -> str:
    """Run one world in virtual time; return what identifies its course. Raises as `run_worlds`."""
    folder = None
    if on_delta:
        shared = MEMORY if MEMORY.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="driftline-world-", dir=shared))
    try:
        world = World(seed, tally, folder=folder)
        try:
            return world.run(commands)
        except Exception as error:
            delta = " --delta" if on_delta else ""
            raise AssertionError(
                f"{type(error).__name__}: {error}\n"
                f"python -m tests.simulation --seed {seed} --commands {commands}{delta}\n"
                f"{world.drawn}"
            ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

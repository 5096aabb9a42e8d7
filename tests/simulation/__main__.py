"""Run worlds from a seed on: `python -m tests.simulation --seed SEED [--refreshes N] [--delta]`."""

from __future__ import annotations

import argparse
import time

from tests.simulation.clock import virtual_time
from tests.simulation.sample import COMMANDS, run_world, run_worlds
from tests.simulation.world import Tally


def main() -> None:
    """Run one world, or worlds until there were so many refreshes; print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--refreshes", type=int, help="run worlds until there were so many")
    parser.add_argument("--commands", type=int, default=COMMANDS, help="of the only world")
    parser.add_argument("--delta", action="store_true", help="tables in the format of Delta")
    parser.add_argument("--parts", action="store_true", help="tables compared in part alone")
    parser.add_argument("--lies", action="store_true", help="notes that claim more or less alone")
    given = parser.parse_args()
    began, cpu = time.monotonic(), time.process_time()
    if given.refreshes is None:
        tally = Tally()
        with virtual_time():
            trace = run_world(given.seed, tally, commands=given.commands, on_delta=given.delta)
        print(f"seed {given.seed}: {trace}")
    else:
        kinds = {"on_delta": given.delta, "parts": given.parts, "lies": given.lies}
        tally = run_worlds(given.seed, given.refreshes, **kinds)
    print(
        f"{tally.refreshes} refreshes, {tally.versions} versions, 0 violations,"
        f" {time.monotonic() - began:.0f} s, {time.process_time() - cpu:.0f} s of a core"
    )
    print(", ".join(f"{what}: {count}" for what, count in sorted(tally.happened.items())))


if __name__ == "__main__":
    main()

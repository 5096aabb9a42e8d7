"""Copied into `driftline` of an observed tree: says which test reached a place, and when.

Processes that tests start inherit `PYTEST_CURRENT_TEST`; one that outlives its test says the wrong
one, so that the moment counts, and the process of pytest-xdist that started it.
"""

import os
import time

VARIABLE = "MUTANTS_REACHED"
_EVERY_S = 0.25  # a place of a loop says so once, meanwhile
_said: set[tuple[str, int]] = set()


def reached(mutant: str) -> None:
    """Add a line to a file of this process: mutant, seconds since 1970."""
    at = time.time()
    if (mutant, int(at / _EVERY_S)) in _said or VARIABLE not in os.environ:
        return
    _said.add((mutant, int(at / _EVERY_S)))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    place = os.path.join(os.environ[VARIABLE], worker)
    file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, f"{mutant}\t{at:.3f}\n".encode())
    os.close(file)

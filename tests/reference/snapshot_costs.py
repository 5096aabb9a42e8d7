"""The costs and errors of snapshot differentials (Labio and Garcia-Molina, sections 3 to 5.1).

Sizes are blocks of 16 kB; F is |F_1| = |F_2|, u the compression factor of <K, b> and <K, b, p>.
"""

from __future__ import annotations

import math
from typing import NamedTuple

BLOCK_BYTES = 16 << 10
RECORD_BYTES = 150


class Files(NamedTuple):
    """Figure 7: the size of a file, and of memory, in bytes; u; the share of U + I."""

    size: float
    memory: float = 32 << 20
    u_kb: float = 15
    u_kbp: float = 10
    changed: float = 0.01


def io(algorithm: str, files: Files) -> float:
    """The IO cost of one of SM, SMC1, SMC2, PH, PHC1, PHC2 and W, in blocks."""
    F = files.size / BLOCK_BYTES
    f = F / _factor(algorithm, files)
    probes = files.changed * files.size / RECORD_BYTES
    if algorithm.startswith("PHC") and f * BLOCK_BYTES <= files.memory:
        return f + F + f  # all buckets of f_1 in memory (section 3.3)
    return {
        "SM": F + 4 * F,
        "SMC1": f + 3 * F + f,
        "SMC2": f + F + 3 * f + probes,
        "PH": F + 3 * F,
        "PHC1": f + 3 * F + f,
        "PHC2": f + F + 2 * f + probes,
        "W": F + F,
    }[algorithm]


def intermediate(algorithm: str, files: Files) -> float:
    """The size X of the intermediate files of an algorithm, in blocks (Figure 8 says MB)."""
    F = files.size / BLOCK_BYTES
    if algorithm == "W":
        return 0
    return F / _factor(algorithm, files) if algorithm.endswith("C2") else F


def _factor(algorithm: str, files: Files) -> float:
    return files.u_kb if algorithm.endswith("C1") else files.u_kbp


def good_days(size: float, bits: int) -> float:
    """N_good_days: files of `size` bytes are compared daily by `bits` of each B (Equations 1, 2).

    The p_day that is printed below Equation 1 is another one than its formula gives, which is that
    of the printed 2,430 days.
    """
    records = size / RECORD_BYTES
    return -1 / math.expm1(records * math.log1p(-(2.0**-bits)))

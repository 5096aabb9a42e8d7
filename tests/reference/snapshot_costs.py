"""The IO costs of snapshot differentials (Labio and Garcia-Molina, sections 3, 4 and 5.1).

Sizes are blocks of 16 kB; F is |F_1| = |F_2|, u the compression factor of <K, b> and <K, b, p>.
"""

from __future__ import annotations

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
    f = F / (files.u_kb if algorithm.endswith("C1") else files.u_kbp)
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

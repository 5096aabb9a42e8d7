"""The reference for protocol section 7: set sketches, entry by entry.

An entry is a pair (k, r), a cell a pair (Σ r, Σ k·r) modulo P, a table a list of them, thirds one
after the other. `base` is None where positions are hashed; s1 is the second half of the salt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import zstandard

from tests.reference.digests import xx, xxhash64

P = 2**32 - 5

Entry = tuple[int, int]
Cell = tuple[int, int]


def embedded(position: int, *, span: int, base: int | None, s1: int) -> int | None:
    """k of a position, None outside."""
    if base is None:
        return (xxhash64(s1, position) // 2**32) * span // 2**32
    k = position - base
    return k if 0 <= k < span else None


def element(m0: int) -> int:
    """r of a row whose row hash is m0."""
    return 1 + m0 % (P - 1)


def places(k: int, third: int, s1: int) -> tuple[int, int, int]:
    a = xx(k, s1)
    b = xx(a, s1)
    u = (a % 2**32, a >> 32, b >> 32)
    first, second, last = (j * third + u[j] * third // 2**32 for j in range(3))
    return first, second, last


def c(k: int, s1: int) -> int:
    return xx(xx(k, s1), s1) % 2**32


def table(entries: Iterable[Entry], third: int, s1: int) -> list[Cell]:
    cells = [(0, 0)] * (3 * third)
    for k, r in entries:
        _add(cells, places(k, third, s1), k, r)
    return cells


def _add(cells: list[Cell], places: Iterable[int], k: int, r: int) -> None:
    for at in places:
        cells[at] = (cells[at][0] + r) % P, (cells[at][1] + k * r) % P


def check(entries: Iterable[Entry], s1: int) -> int:
    return sum((c(k, s1) % P) * r for k, r in entries) % P


def summed(cells: Sequence[Cell]) -> Cell:
    return sum(r for r, _ in cells) % P, sum(kr for _, kr in cells) % P


def grid(third: int, fold: int, cut: int = 0, finer: int = 0) -> list[range]:
    """For each cell of a grid, the cells of the finest table that are added up in it."""
    parts = [range(at, at + fold) for at in range(0, 3 * third, fold)]
    return [
        range(at, at + finer) for part in parts[:cut] for at in range(part.start, part.stop, finer)
    ] + parts[cut:]


def folded(cells: Sequence[Cell], grid: Iterable[range]) -> list[Cell]:
    return [summed([cells[at] for at in part]) for part in grid]


def children(
    fine: Sequence[Cell],
    parent: Sequence[range] | None,
    grid: Sequence[range],
    stuck: Iterable[int],
) -> list[Cell]:
    """What follows about the stuck cells of a grid; without one, every cell."""
    cells = folded(fine, grid)
    if parent is None:
        return cells
    sent: list[Cell] = []
    for at in sorted(stuck):
        inside = [i for i, part in enumerate(grid) if part.start in parent[at]]
        sent += [cells[i] for i in inside[:-1]]
    return sent


def wire(cells: Iterable[Cell]) -> bytes:
    return b"".join(r.to_bytes(4, "little") + kr.to_bytes(4, "little") for r, kr in cells)


def sample(cells: Sequence[Cell], count: int) -> bytes:
    """What a verdict says of so many cells."""
    return bytes(cells[i * len(cells) // count][0] % 256 for i in range(count))


def difference(these: Sequence[Cell], those: Sequence[Cell]) -> list[Cell]:
    pairs = zip(these, those, strict=True)
    return [((a[0] - b[0]) % P, (a[1] - b[1]) % P) for a, b in pairs]


def read(
    cells: Sequence[Cell], grid: Sequence[range], check: int, span: int, s1: int
) -> tuple[dict[int, int], list[int]]:
    """The entries of a difference, k to the sum of its r, and the cells that stay stuck.

    One cell that holds a single entry after the other is emptied. What touches a cell that stays
    is not told, and nothing is where it does not explain the check: then every cell is stuck.
    """
    where = _Where(grid, s1)
    left, found = _peel(cells, where, span)
    stuck = {at for at, cell in enumerate(left) if cell != (0, 0)}
    for k, x in list(found.items()):
        if stuck & set(where(k)):
            _add(left, where(k), k, x)
            del found[k]
    stuck = {at for at, cell in enumerate(left) if cell != (0, 0)}
    explained = sum((c(k, s1) % P) * x for k, x in found.items()) % P
    if not stuck and explained != check % P:
        return {}, list(range(len(cells)))
    return found, sorted(stuck)


class _Where:
    """The three cells of a k on a grid."""

    def __init__(self, grid: Sequence[range], s1: int) -> None:
        self._third, self._s1 = grid[-1].stop // 3, s1
        self._cell = {place: at for at, part in enumerate(grid) for place in part}

    def __call__(self, k: int) -> list[int]:
        return [self._cell[place] for place in places(k, self._third, self._s1)]


def _peel(cells: Sequence[Cell], where: _Where, span: int) -> tuple[list[Cell], dict[int, int]]:
    left, found = list(cells), dict[int, int]()
    at = idle = steps = 0
    # A cell that only seems to hold one entry may be emptied and filled again for ever.
    while idle < len(cells) and steps < 20 * len(cells):
        k = _single(left, at, where, span)
        if k is None:
            idle += 1
        else:
            x = left[at][0]
            _add(left, where(k), k, P - x)
            found[k] = (found.get(k, 0) + x) % P
            idle, steps = 0, steps + 1
        at = (at + 1) % len(cells)
    return left, {k: x for k, x in found.items() if x}


def _single(cells: Sequence[Cell], at: int, where: _Where, span: int) -> int | None:
    """k of the only entry of a cell, None if it has none or several."""
    r, kr = cells[at]
    if r == 0:
        return None
    k = kr * pow(r, -1, P) % P
    return k if k < span and at in where(k) else None


def planes(ks: Sequence[int]) -> bytes:
    """A list of ascending k before it is compressed."""
    steps = [k - before for k, before in zip(ks, [0, *ks], strict=False)]
    return b"".join(bytes(step >> 8 * j & 255 for step in steps) for j in range(4))


def pack(ks: Sequence[int]) -> bytes:
    return zstandard.compress(planes(ks), 3)


def unpack(data: bytes) -> list[int]:
    """The k of a well-formed list."""
    raw = zstandard.decompress(data)
    count = len(raw) // 4
    ks, k = [], 0
    for i in range(count):
        k += sum(raw[j * count + i] << 8 * j for j in range(4))
        ks.append(k)
    return ks

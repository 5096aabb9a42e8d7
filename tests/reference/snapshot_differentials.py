"""The reference for snapshot differentials: Labio and Garcia-Molina's algorithms as printed.

Names are the paper's: F_1 and F_2 are files of records (K, B), F_out the changes, r_1 and r_2 the
next records, b a compressed B, and p the place of a record in F_2. `sort_merge` is Algorithm 3.1
(Figure 1), `sort_merge_kb` and `sort_merge_kbp` are Algorithms 3.2 and 3.3 (Figures 3 and 4),
`partitioned_hash` is the join of Appendix A, `window` Algorithm 4.1 (Figure 6). All but the hash
join keep the flaws of the printed lines: their loops end with the shorter file, and nothing reports
what is still in the aging buffers. (Figure 3 reads r_2 from F_2 sorted in lines 7 and 15, which it
does not write; the runs are meant.)
`differential` is the problem's definition (section 1.1), `distance` Equation 3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Record(NamedTuple):
    K: int
    B: str


class Change(NamedTuple):
    """<Update, K, B>, <Delete, K> (B is None) or <Insert, K, B>."""

    form: str
    K: int
    B: str | None = None


class Compressed(NamedTuple):
    """<K, b>, or <K, b, p>."""

    K: int
    b: int
    p: int = -1


File = Sequence[Record]
Compress = Callable[[str], int]


def differential(f_1: File, f_2: File) -> set[Change]:
    """The least set of changes, from the definition of its three forms."""
    old, new = dict(f_1), dict(f_2)
    updates = {Change("Update", k, b) for k, b in new.items() if k in old and old[k] != b}
    inserts = {Change("Insert", k, b) for k, b in new.items() if k not in old}
    return updates | inserts | {Change("Delete", k) for k in old.keys() - new.keys()}


def useless_pairs(f_out: Sequence[Change]) -> set[int]:
    """The keys that are both inserted and deleted (section 1.1)."""
    inserted = {c.K for c in f_out if c.form == "Insert"}
    return inserted & {c.K for c in f_out if c.form == "Delete"}


def distance(f_1: File, f_2: File) -> float:
    """Equation 3."""
    pos = {r.K: i for i, r in enumerate(f_2)}
    apart = sum(abs(i - pos[r.K]) for i, r in enumerate(f_1) if r.K in pos)
    return apart / (max(len(f_1), len(f_2)) ** 2 / 2)


def sort_merge(f_1_sorted: File, f_2: File) -> tuple[list[Change], list[Record]]:
    """Algorithm 3.1, line by line: F_out, and F_2 sorted as far as it was read."""
    f_out: list[Change] = []
    f_2_sorted: list[Record] = []
    first, second = iter(f_1_sorted), iter(sorted(f_2))  # 1

    def read_2() -> Record | None:
        if (r := next(second, None)) is not None:
            f_2_sorted.append(r)
        return r

    r_1, r_2 = next(first, None), read_2()  # 2, 3
    while r_1 is not None and r_2 is not None:  # 4
        if r_1 is None or r_1.K > r_2.K:  # 5
            f_out.append(Change("Insert", r_2.K, r_2.B))  # 6
            r_2 = read_2()  # 7
        elif r_2 is None or r_1.K < r_2.K:  # 8
            f_out.append(Change("Delete", r_1.K))  # 9
            r_1 = next(first, None)  # 10
        else:  # 11
            if r_1.B != r_2.B:  # 12
                f_out.append(Change("Update", r_2.K, r_2.B))  # 13
            r_1, r_2 = next(first, None), read_2()  # 14, 15
    return f_out, f_2_sorted


def sort_merge_kb(
    f_1_sorted: Sequence[Compressed], f_2: File, compress: Compress
) -> tuple[list[Change], list[Compressed]]:
    """Algorithm 3.2: the lines of 3.1 but for 3, 7, 12 and 15; F_out, and f_2 sorted."""
    f_out: list[Change] = []
    f_2_sorted: list[Compressed] = []
    first, second = iter(f_1_sorted), iter(sorted(f_2))  # 1

    def read_2() -> Record | None:
        if (r := next(second, None)) is not None:
            f_2_sorted.append(Compressed(r.K, compress(r.B)))
        return r

    r_1, r_2 = next(first, None), read_2()  # 2, 3
    while r_1 is not None and r_2 is not None:  # 4
        if r_1 is None or r_1.K > r_2.K:  # 5
            f_out.append(Change("Insert", r_2.K, r_2.B))  # 6
            r_2 = read_2()  # 7
        elif r_2 is None or r_1.K < r_2.K:  # 8
            f_out.append(Change("Delete", r_1.K))  # 9
            r_1 = next(first, None)  # 10
        else:  # 11
            if r_1.b != compress(r_2.B):  # 12
                f_out.append(Change("Update", r_2.K, r_2.B))  # 13
            r_1, r_2 = next(first, None), read_2()  # 14, 15
    return f_out, f_2_sorted


def sort_merge_kbp(
    f_1_sorted: Sequence[Compressed], f_2: File, compress: Compress
) -> tuple[list[Change], list[Compressed]]:
    """Algorithm 3.3, line by line: F_out, and f_2 sorted as far as it was read."""
    f_out: list[Change] = []
    f_2_sorted: list[Compressed] = []
    runs = sorted(Compressed(r.K, compress(r.B), p) for p, r in enumerate(f_2))  # 1
    first, second = iter(f_1_sorted), iter(runs)

    def read_2() -> Compressed | None:
        if (r := next(second, None)) is not None:
            f_2_sorted.append(r)
        return r

    r_1, r_2 = next(first, None), read_2()  # 2, 3
    while r_1 is not None and r_2 is not None:  # 4
        if r_1 is None or r_1.K > r_2.K:  # 5
            r_full = f_2[r_2.p]  # 5a
            f_out.append(Change("Insert", r_2.K, r_full.B))  # 6
            r_2 = read_2()  # 7
        elif r_2 is None or r_1.K < r_2.K:  # 8
            f_out.append(Change("Delete", r_1.K))  # 9
            r_1 = next(first, None)  # 10
        else:  # 11
            if r_1.b != r_2.b:  # 12
                r_full = f_2[r_2.p]  # 12a
                f_out.append(Change("Update", r_2.K, r_full.B))  # 13
            r_1, r_2 = next(first, None), read_2()  # 14, 15
    return f_out, f_2_sorted


def partitioned_hash(f_1: File, f_2: File, *, buckets: int, portion: int) -> list[Change]:
    """The partitioned hash outer join of Appendix A; `portion` records of a bucket b_F2 at once."""
    f_out: list[Change] = []
    for number in range(buckets):
        b_f1 = {r.K: r.B for r in f_1 if hash(r.K) % buckets == number}
        b_f2 = [r for r in f_2 if hash(r.K) % buckets == number]
        matched_1: set[int] = set()
        for at in range(0, len(b_f2), portion):
            for r in b_f2[at : at + portion]:
                if r.K not in b_f1:
                    f_out.append(Change("Insert", r.K, r.B))
                    continue
                matched_1.add(r.K)
                if b_f1[r.K] != r.B:
                    f_out.append(Change("Update", r.K, r.B))
        f_out += [Change("Delete", k) for k in b_f1 if k not in matched_1]
    return f_out


def window(f_1: File, f_2: File, *, n: int, aging: int) -> list[Change]:
    """Algorithm 4.1, line by line: n records an input buffer, `aging` an aging buffer."""
    f_out: list[Change] = []
    first, second = _blocks(f_1, n), _blocks(f_2, n)
    aging_1: OrderedDict[int, Record] = OrderedDict()
    aging_2: OrderedDict[int, Record] = OrderedDict()
    input_1, input_2 = next(first), next(second)  # 1, 2
    while input_1 and input_2:  # 3
        _match(input_1, input_2, f_out)  # 4
        _match(input_1, aging_2, f_out)  # 5
        _match(aging_1, input_2, f_out)  # 6
        for r in _force(input_1, aging_1, aging):  # 7
            f_out.append(Change("Delete", r.K))
        for r in _force(input_2, aging_2, aging):  # 8
            f_out.append(Change("Insert", r.K, r.B))
        input_1, input_2 = next(first), next(second)  # 9, 10
    f_out += [Change("Delete", k) for k in input_1]  # 11
    f_out += [Change("Insert", k, r.B) for k, r in input_2.items()]  # 12
    return f_out


def _blocks(file: File, n: int) -> Iterator[OrderedDict[int, Record]]:
    for at in range(0, len(file), n):
        yield OrderedDict((r.K, r) for r in file[at : at + n])
    while True:
        yield OrderedDict()


def _match(
    one: OrderedDict[int, Record], two: OrderedDict[int, Record], f_out: list[Change]
) -> None:
    for k in [k for k in one if k in two]:
        r_1, r_2 = one.pop(k), two.pop(k)
        if r_1.B != r_2.B:
            f_out.append(Change("Update", k, r_2.B))


def _force(
    block: OrderedDict[int, Record], buffer: OrderedDict[int, Record], aging: int
) -> list[Record]:
    """Put a block at the tail of a buffer; the records that its head gives up."""
    buffer.update(block)
    return [buffer.popitem(last=False)[1] for _ in range(max(len(buffer) - aging, 0))]

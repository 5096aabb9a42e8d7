"""Decide how the rows that changed rows join with are found, without I/O.

A view is to be computed again where some input row changed. Of each occurrence the query needs the
changed rows, and the rows that may join with changed rows of other occurrences: any superset gives
the same result, because rows without a changed one are dropped from it. The equalities of the query
make a graph of occurrences. Along a spanning tree of it, values of join columns are passed as
*messages*: u sends v the values of its rows that v's partners must have.

    up    from the leaves to the root: values of changed rows and of their partners below
    down  from the root to the leaves: values of the same from everywhere else

So an occurrence is read twice at most, and its other columns once. A message holds only what comes
from the sender's side of the edge, so no row is selected because of itself. (This is the full
reducer of Yannakakis, VLDB 1981, with changed rows in place of all.)

An equality is an edge only if equal values have equal codes (`row_codes.family`): not casts,
floats, decimals of two scales, `<=>`, OR. Where no edge leads from a changed row to an occurrence,
all of it goes into the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from warehouse_agent.columns.row_codes import family

_OF_KEY, _OF_OTHER = 1, 10  # weights of an edge: one side is a key, so few rows match; or not


@dataclass(frozen=True, slots=True)
class OccurrenceFacts:
    """The facts about an occurrence on which the decision depends.

    Attributes:
        types: the Spark type of each column.
        key: the column that is alone the key; None: there is none.
        rows: in the relation.
        is_changed: True if some row changed.
    """

    types: Mapping[str, str]
    key: str | None
    rows: int
    is_changed: bool


@dataclass(frozen=True, slots=True)
class JoinEdge:
    """Equalities between two occurrences, by number; `columns` has those of `ends` in order."""

    ends: tuple[int, int]
    columns: tuple[tuple[str, ...], tuple[str, ...]]

    def other(self, end: int) -> int:
        """Return the occurrence at the other end."""
        return self.ends[1] if end == self.ends[0] else self.ends[0]

    def of(self, end: int) -> tuple[str, ...]:
        """Return the columns of the occurrence at one end."""
        return self.columns[self.ends.index(end)]


@dataclass(frozen=True, slots=True)
class EdgeMessage:
    """Values that an occurrence sends along an edge."""

    sender: int
    edge: JoinEdge


@dataclass(frozen=True, slots=True)
class ChangesStep:
    """The values of changed rows are sent; no file of the relation is read."""

    sends: EdgeMessage


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Values of changed rows, and of rows that the messages select, are sent."""

    messages: tuple[EdgeMessage, ...]
    sends: EdgeMessage
    has_changes: bool


@dataclass(frozen=True, slots=True)
class SelectionStep:
    """Rows of an occurrence are selected for the query: changed rows, and those that the messages
    select. Of the selected, values are sent along each of `sends`, without those that are selected
    because of what came along the same edge."""

    occurrence: int
    messages: tuple[EdgeMessage, ...]
    has_changes: bool
    sends: tuple[EdgeMessage, ...]


Step = ChangesStep | ProbeStep | SelectionStep


@dataclass(frozen=True, slots=True)
class Reduction:
    """The steps, in order, and the occurrences that the query needs whole."""

    steps: tuple[Step, ...]
    whole: frozenset[int]


Side = tuple[int, str]  # an occurrence, and one of its columns


def edges(
    equalities: Sequence[tuple[Side, Side]], occurrences: Sequence[OccurrenceFacts]
) -> tuple[JoinEdge, ...]:
    """Return the edges of the join graph, those between the same two occurrences as one."""
    by_ends: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for left, right in equalities:
        (a, one), (b, other) = sorted((left, right))
        kinds = [family(occurrences[i].types[c]) for i, c in ((a, one), (b, other))]
        if a == b or kinds[0] is None or kinds[0] != kinds[1]:
            continue
        pairs = by_ends.setdefault((a, b), [])
        if (one, other) not in pairs:
            pairs.append((one, other))
    return tuple(
        JoinEdge(ends, (tuple(a for a, _ in pairs), tuple(b for _, b in pairs)))
        for ends, pairs in by_ends.items()
    )


def reduction(edges: Sequence[JoinEdge], occurrences: Sequence[OccurrenceFacts]) -> Reduction:
    """Return how the rows that the query needs are found. Some occurrence must have changed."""
    changed = {i for i, one in enumerate(occurrences) if one.is_changed}
    tree = _spanning(edges, occurrences)
    parts = _components(tree, len(occurrences))
    with_changes = [part for part in parts if part & changed]
    assert with_changes, "some occurrence changed"
    if len(with_changes) > 1:  # changed rows of one part join with all rows of the other
        return Reduction((), frozenset(range(len(occurrences))))
    (part,) = with_changes
    whole = frozenset(range(len(occurrences))) - part
    steps = _Passes(tree, occurrences, changed).steps(_root(part, tree, occurrences))
    return Reduction(tuple(steps), whole)


def _spanning(
    edges: Sequence[JoinEdge], occurrences: Sequence[OccurrenceFacts]
) -> tuple[JoinEdge, ...]:
    """Return a spanning forest of least weight (Kruskal)."""

    def weight(edge: JoinEdge) -> int:
        is_key = any(occurrences[end].key in edge.of(end) for end in edge.ends)
        return _OF_KEY if is_key else _OF_OTHER

    part = list(range(len(occurrences)))
    chosen = []
    for edge in sorted(edges, key=weight):
        a, b = (part[end] for end in edge.ends)
        if a != b:
            chosen.append(edge)
            part = [a if one == b else one for one in part]
    return tuple(chosen)


def _components(tree: Sequence[JoinEdge], count: int) -> list[set[int]]:
    parts = [{i} for i in range(count)]
    for edge in tree:
        a, b = (next(p for p in parts if end in p) for end in edge.ends)
        parts = [p for p in parts if p not in (a, b)] + [a | b]
    return parts


def _root(part: set[int], tree: Sequence[JoinEdge], occurrences: Sequence[OccurrenceFacts]) -> int:
    """Return the largest occurrence with several edges, which the root alone reads once; else the
    largest."""
    degree = {i: sum(i in edge.ends for edge in tree) for i in part}
    return max(part, key=lambda i: (degree[i] > 1, occurrences[i].rows, -i))


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes over one tree."""

    tree: Sequence[JoinEdge]
    occurrences: Sequence[OccurrenceFacts]
    changed: set[int]

    def steps(self, root: int) -> Iterator[Step]:
        yield from self._up(root, None)
        yield from self._down(root, None)

    def _others(self, end: int, but: JoinEdge | None) -> list[JoinEdge]:
        return [edge for edge in self.tree if end in edge.ends and edge is not but]

    def _sends(self, sender: int, edge: JoinEdge) -> bool:
        """Return True if some row on the sender's side of an edge changed."""
        if sender in self.changed:
            return True
        return any(self._sends(e.other(sender), e) for e in self._others(sender, edge))

    def _received(self, end: int, edges: Sequence[JoinEdge]) -> tuple[EdgeMessage, ...]:
        return tuple(EdgeMessage(e.other(end), e) for e in edges if self._sends(e.other(end), e))

    def _up(self, end: int, above: JoinEdge | None) -> Iterator[Step]:
        below = self._others(end, above)
        for edge in below:
            yield from self._up(edge.other(end), edge)
        if above is None or not self._sends(end, above):
            return
        if messages := self._received(end, below):
            yield ProbeStep(messages, EdgeMessage(end, above), end in self.changed)
        else:
            yield ChangesStep(EdgeMessage(end, above))

    def _down(self, end: int, above: JoinEdge | None) -> Iterator[Step]:
        below = self._others(end, above)
        messages = self._received(end, self._others(end, None))
        sends = tuple(EdgeMessage(end, edge) for edge in below if self._sends(end, edge))
        yield SelectionStep(end, messages, end in self.changed, sends)
        for edge in below:
            yield from self._down(edge.other(end), edge)

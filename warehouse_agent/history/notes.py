"""Notes of a fragment between refreshes: a typed value, read once in its turn.

Its file, `_driftline/fragments/NAME.json`, may be lost or damaged at any time: the next refresh
then costs more, and its result is the same. So a value that is not possible counts as missing, and
no error is raised. What another release wrote and this one does not know stays as it is.

Three kinds of notes differ in when they must be on disk:

 1. What is said of a version (`checked`, `part`, `row_security`, `mark`) names the version and, by
    `head`, its table; of any other it says nothing. So it may be written after the commit: if that
    is not done, the record of the version speaks for it.
 2. What takes trust away is written before the commit that it speaks of, because a version number
    may be given out again: where versions are gone, all that was said of them goes first
    (`without_versions`), and `head` says until when numbers are given out again (`is_renumbered`).
 3. What was learnt (prices, rates, quantiles, turns) is written once, after the commit. If it is
    lost, a forecast is wrong.

`head` itself is written after the commit, so that it never accuses wrongly; damage is noted when it
is found, and holds for every version that has the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.relations import activity
from driftline.relations.activity import Activity

from warehouse_agent.config import Proof, Require
from warehouse_agent.history.marks import KeptMark
from warehouse_agent.json_values import GREATEST, knots, number
from warehouse_agent.planning.group_selection import GroupSizes
from warehouse_agent.planning.prices import LearntPrices
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store, json_of
from warehouse_agent.storage.table import Version

T = TypeVar("T")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class VersionNote(Generic[T]):
    """A statement about one version of a table, and about no other."""

    version: int
    said: T


@dataclass(frozen=True, slots=True)
class ComparisonNote:
    """The last comparison that found all rows of a version equal to the source.

    `as_of` is the source's instant and `checked_at` the warehouse's time, both ISO 8601 in UTC.
    `activity`, from before that instant, is what a later one is compared with; None: not read, or
    its note is lost. `proof`: what the comparison proved, if not all rows (`config.Proof`).
    """

    as_of: str
    checked_at: str
    consistency: str
    activity: Activity | None = None
    proof: str = Proof.TOTAL.value


@dataclass(frozen=True, slots=True)
class UncomparedNote:
    """Rows of ours that a refresh of a part did not compare, and the number of updates that are
    expected among them; `allowed` is what the source allowed to be read then, None: everything."""

    rows_left: int
    updates_left: float | None
    allowed: str | None


@dataclass(frozen=True, slots=True)
class HeadNote:
    """A table by its id, and its newest version after the last refresh.

    `is_renumbered`: older rows are being published again under the numbers up to this version, so
    the head must be a later one before anybody goes on.
    """

    table: str
    version: int
    is_renumbered: bool = False


@dataclass(frozen=True, slots=True)
class MarkNote:
    """The mark of a version, which is told by its time too from one of the same number."""

    version: int
    published_at: str
    marking: KeptMark

    def is_of(self, version: Version) -> bool:
        """Return True if it is the mark of this version of its table."""
        identity = (version.version, version.record.published_at)
        return (self.version, self.published_at) == identity


@dataclass(frozen=True, slots=True)
class NeedNote:
    """The digest of what views wish of a kept relation, and the id of the recipe that serves it."""

    views: str
    recipe: str


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Positions that cut `rows` rows into ranges of equal size, by their integer column `key`."""

    positions: tuple[int, ...]
    rows: int
    key: str


@dataclass(frozen=True, slots=True)
class NextPartNote:
    """The beginning of the next part of a table, and what the last comparison by groups measured.

    None: not known, or, in what a refresh learnt, as before.

    Attributes:
        position: after the last part.
        key: the string forms of a key; empty: the least one.
        key_bytes: of a key that travels itself, measured on the keys of the last part.
        groups: of the last comparison.
    """

    position: int | None = None
    key: tuple[str, ...] | None = None
    key_bytes: float | None = None
    groups: GroupSizes | None = None

    def after(self, newer: NextPartNote) -> NextPartNote:
        """Return what is known after a refresh that learnt `newer`."""
        return NextPartNote(
            self.position if newer.position is None else newer.position,
            self.key if newer.key is None else newer.key,
            self.key_bytes if newer.key_bytes is None else newer.key_bytes,
            newer.groups or self.groups,
        )


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a fragment; None, empty: not noted.

    Attributes:
        checked: the last comparison of all rows of a version.
        head: the newest version after the last refresh.
        damaged: what is wrong with data files, by path.
        part: what the last refresh left, if it compared a part.
        wish: of views, that a kept relation serves.
        mark: of a version that a refresh found equal.
        marker_time: the column of a time marker, as the source described it; empty: none.
        row_security: policies under which a version was read that has none in its record.
        rows_per_s, keys_per_s: how fast the source read rows, and found changes by a marker.
        others: what this release does not know, as JSON.
    """

    checked: VersionNote[ComparisonNote] | None = None
    head: HeadNote | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    part: VersionNote[UncomparedNote] | None = None
    wish: NeedNote | None = None
    mark: MarkNote | None = None
    marker_time: str = ""
    row_security: VersionNote[PolicyDigests] | None = None
    prices: LearntPrices = field(default_factory=LearntPrices)
    rows_per_s: float | None = None
    keys_per_s: float | None = None
    turn: NextPartNote = field(default_factory=NextPartNote)
    quantiles: Quantiles | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, name: str) -> Self:
        """Return the notes of a fragment. Raises WarehouseUnavailable."""
        return cls.from_json(store.read_json(*place(name)))

    def write(self, store: Store, name: str, before: Notes) -> Notes:
        """Write these notes if they are not those `before`, which were read; return what is there.

        Hold the fragment's lock. Where it does not keep others away, they may have noted something
        since: only what is not as before is written over it.

        Raises:
            WarehouseUnavailable: they cannot be written.
        """
        if self == before:
            return self
        merged: Notes = self
        if store.has_locks:
            store.write(self._encoded(), *place(name))
            return merged

        def over(now: bytes) -> bytes:
            nonlocal merged
            merged = self._over(before, Notes.from_json(json_of(now)))
            return merged._encoded()

        store.change(over, *place(name))
        return merged

    def _encoded(self) -> bytes:
        return json.dumps(self.to_json()).encode()

    def _over(self, before: Notes, now: Notes) -> Notes:
        """Return what is noted `now` with what differs here from `before`."""
        changed = {
            one.name: getattr(self, one.name)
            for one in fields(Notes)
            if getattr(self, one.name) != getattr(before, one.name)
        }
        if "damaged" in changed:
            done = before.damaged.keys() - self.damaged.keys()
            left = {path: what for path, what in now.damaged.items() if path not in done}
            changed["damaged"] = {**left, **self.damaged}
        if self.head is None and before.head is not None:
            now = now.without_versions()
        elif self.head is not None and self.head.is_renumbered:
            now = now.unchecked()
        return replace(now, **changed)

    def comparison(self, version: Version) -> ComparisonNote:
        """Return the last comparison of all rows of a version.

        It is recorded in the commit of the version, or noted by a later refresh that published
        nothing.
        """
        record, noted = version.record, self._if_of(self.checked, version)
        if noted is None:
            return ComparisonNote(
                record.as_of, record.checked_at, record.consistency, proof=record.proof
            )
        said = (record.consistency, noted.consistency)
        fuzzy = Require.FUZZY.value
        return ComparisonNote(
            noted.as_of,
            noted.checked_at,
            fuzzy if fuzzy in said else record.consistency,
            noted.activity,
            weaker(record.proof, noted.proof),
        )

    def part_left(self, version: Version) -> UncomparedNote | None:
        """Return what the last refresh left of a version, if it compared a part."""
        return self._if_of(self.part, version)

    def policies(self, version: Version) -> PolicyDigests | None:
        """Return the policies under which a version was read; None if the source sent none."""
        kept = PolicyDigests.from_json(version.record.row_security)
        return self._if_of(self.row_security, version) if kept is None else kept

    def marking(self, version: Version | None) -> KeptMark:
        """Return the mark of a version; nothing is known without one."""
        if version is None:
            return KeptMark()
        noted = self.mark
        if noted is not None and self._is_of(version) and noted.is_of(version):
            return noted.marking
        return KeptMark.from_json(version.record.marking)

    def newer(self, head: Version) -> int | None:
        """Return the noted version of this table if the head is older, or is still to be followed
        by one that tells readers of its feed to begin again; else None."""
        noted = self.head
        if noted is None or noted.table != head.table or noted.version < head.version:
            return None
        return noted.version if noted.version > head.version or noted.is_renumbered else None

    @property
    def has_versions(self) -> bool:
        """Return True if something is said of a version."""
        return self != self.without_versions()

    def without_versions(self) -> Notes:
        """Return the notes of a table of which no version is known any more."""
        return replace(self.unchecked(), head=None, damaged={})

    def unchecked(self) -> Notes:
        """Return the notes without what is said of one version: numbers are given out again."""
        return replace(self, checked=None, part=None, mark=None, row_security=None)

    def moved(self, before: Version, after: Version) -> Notes:
        """Return what is said of a version as said of one with the same rows."""
        notes, number = self, after.version
        for name in ("checked", "part", "row_security", "head"):
            noted = getattr(self, name)
            if noted is not None and noted.version == before.version:
                notes = replace(notes, **{name: replace(noted, version=number)})
        if notes.head is not None and notes.head.version == number:
            # It is a new number, which no reader of a feed has met.
            notes = replace(notes, head=replace(notes.head, is_renumbered=False))
        mark = self.mark
        if mark is not None and mark.is_of(before):
            published_at = after.record.published_at
            notes = replace(notes, mark=MarkNote(number, published_at, mark.marking))
        return notes

    def _if_of(self, noted: VersionNote[T] | None, version: Version) -> T | None:
        if noted is None or noted.version != version.version or not self._is_of(version):
            return None
        return noted.said

    def _is_of(self, version: Version) -> bool:
        """Return True if these notes are of the table of a version, not of one before it."""
        return self.head is not None and self.head.table == version.table

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Return the notes that `to_json` wrote; what is not possible is missing."""
        time = body.get("marker_time")
        return cls(
            checked=_checked(body.get("checked")),
            head=_head(body.get("head")),
            damaged=_damaged(body.get("damaged")),
            part=_part(body.get("part")),
            wish=_wish(body.get("wish")),
            mark=_mark(body.get("mark")),
            marker_time=time if isinstance(time, str) else "",
            row_security=_row_security(body.get("row_security")),
            prices=LearntPrices(
                **{one.name: number(body, one.name) for one in fields(LearntPrices)}
            ),
            rows_per_s=number(body, "rows_per_s"),
            keys_per_s=number(body, "keys_per_s"),
            turn=NextPartNote(
                _position(body.get("turn_from")),
                _texts(body.get("turn_from_key")),
                number(body, "named_key_bytes"),
                _groups(body.get("groups")),
            ),
            quantiles=_quantiles(body),
            others={key: body[key] for key in body if key not in _KEYS},
        )

    def to_json(self) -> dict[str, object]:
        """Return the notes as JSON."""
        # A table that has versions has these, also where nothing is said.
        always = {"checked": None, "head": None, "damaged": None} if self.has_versions else {}
        return dict(self.others) | always | dict(self._written())

    def _written(self) -> Iterator[tuple[str, object]]:
        """Yield what is noted, by its key."""
        if (checked := self.checked) is not None:
            said = checked.said.activity
            body = asdict(checked.said) | {"activity": said and activity.to_json(said)}
            yield "checked", {"version": checked.version, **body}
        if (head := self.head) is not None:
            renumbered = {"is_renumbered": True} if head.is_renumbered else {}
            yield "head", {"table": head.table, "version": head.version, **renumbered}
        if self.damaged:
            yield "damaged", {"files": dict(self.damaged)}
        if self.part is not None:
            yield "part", {"version": self.part.version, **asdict(self.part.said)}
        if self.wish is not None:
            yield "wish", [self.wish.views, self.wish.recipe]
        if (mark := self.mark) is not None:
            identity = {"version": mark.version, "published_at": mark.published_at}
            yield "mark", {**identity, **mark.marking.to_json()}
        if self.marker_time:
            yield "marker_time", self.marker_time
        if (security := self.row_security) is not None:
            yield "row_security", {**security.said.to_json(), "version": security.version}
        learnt = {one.name: getattr(self.prices, one.name) for one in fields(LearntPrices)}
        learnt |= {"rows_per_s": self.rows_per_s, "keys_per_s": self.keys_per_s}
        learnt |= {"turn_from": self.turn.position, "named_key_bytes": self.turn.key_bytes}
        yield from ((key, value) for key, value in learnt.items() if value is not None)
        if self.turn.key is not None:
            yield "turn_from_key", list(self.turn.key)
        if self.turn.groups is not None:
            yield "groups", asdict(self.turn.groups)
        if (quantiles := self.quantiles) is not None:
            yield "quantiles", list(quantiles.positions)
            yield "quantiles_rows", quantiles.rows
            yield "key", quantiles.key


_KEYS = frozenset(
    (
        *("checked", "head", "damaged", "part", "wish", "mark", "marker_time", "row_security"),
        *(one.name for one in fields(LearntPrices)),
        *("rows_per_s", "keys_per_s", "turn_from", "turn_from_key", "named_key_bytes"),
        *("groups", "quantiles", "quantiles_rows", "key"),
    )
)


def note_damage(store: Store, name: str, wrong: Mapping[str, str]) -> None:
    """Note what is wrong with data files, by path, for the next refresh.

    Raises:
        WarehouseUnavailable: it cannot be noted.
    """
    before = Notes.read(store, name)
    replace(before, damaged={**before.damaged, **wrong}).write(store, name, before)


def weaker(of_version: str, noted: str) -> str:
    """Return the weaker of two proofs: of a version, and of its last comparison.

    It is that of the version if the other one is not known.
    """
    try:
        return min(Proof(of_version), Proof(noted)).value
    except ValueError:  # of another release, or no note
        return of_version


def place(name: str) -> tuple[str, ...]:
    """Return the place of the notes of a fragment or a view."""
    return (PRIVATE, "fragments", f"{name}.json")


def _version(body: object) -> tuple[int, Mapping[str, Any]]:
    """Return the version that a note names, and the note; −1 if it is none."""
    if not isinstance(body, dict) or type(body.get("version")) is not int:
        return -1, _NOTHING
    return body["version"], body


def _checked(body: object) -> VersionNote[ComparisonNote] | None:
    version, noted = _version(body)
    as_of, checked_at = noted.get("as_of"), noted.get("checked_at")
    consistency, proof = noted.get("consistency"), noted.get("proof")
    if version < 0 or not (_is_moment(as_of) and _is_moment(checked_at)):
        return None
    if not isinstance(consistency, str):
        return None
    said = activity.from_json(noted.get("activity"))
    proof = proof if isinstance(proof, str) else ""
    return VersionNote(
        version, ComparisonNote(str(as_of), str(checked_at), consistency, said, proof)
    )


def _is_moment(text: object) -> bool:
    """Return True if a text is a moment with its time zone."""
    try:
        return datetime.fromisoformat(str(text)).tzinfo is not None
    except ValueError:
        return False


def _head(body: object) -> HeadNote | None:
    version, noted = _version(body)
    table = noted.get("table")
    if version < 0 or not isinstance(table, str):
        return None
    return HeadNote(table, version, noted.get("is_renumbered") is True)


def _damaged(body: object) -> dict[str, str]:
    files = body.get("files") if isinstance(body, dict) else None
    if not isinstance(files, dict):
        return {}
    # What is wrong is for people: a path is enough for a file to be read again.
    return {path: what if isinstance(what, str) else "damaged" for path, what in files.items()}


def _part(body: object) -> VersionNote[UncomparedNote] | None:
    version, noted = _version(body)
    rows, updates, allowed = (noted.get(one.name) for one in fields(UncomparedNote))
    if version < 0 or type(rows) is not int or rows < 0:
        return None
    if not isinstance(updates, int | float) or not 0 <= updates <= GREATEST:
        updates = None
    return VersionNote(
        version, UncomparedNote(rows, updates, allowed if isinstance(allowed, str) else None)
    )


def _wish(body: object) -> NeedNote | None:
    texts = _texts(body)
    return NeedNote(*texts) if texts is not None and len(texts) == 2 else None


def _mark(body: object) -> MarkNote | None:
    version, noted = _version(body)
    published_at = noted.get("published_at")
    if version < 0 or not isinstance(published_at, str):
        return None
    return MarkNote(version, published_at, KeptMark.from_json(noted))


def _row_security(body: object) -> VersionNote[PolicyDigests] | None:
    version, noted = _version(body)
    digests = PolicyDigests.from_json(dict(noted))
    return None if version < 0 or digests is None else VersionNote(version, digests)


def _quantiles(body: Mapping[str, object]) -> Quantiles | None:
    positions, key = knots(body, "quantiles"), body.get("key")
    if not positions or not isinstance(key, str):
        return None
    return Quantiles(tuple(positions), int(number(body, "quantiles_rows") or 0), key)


def _groups(body: object) -> GroupSizes | None:
    if not isinstance(body, Mapping):
        return None
    compared, groups, alone = (body.get(name) for name in ("compared", "groups", "alone"))
    each, is_named = number(body, "key_bytes"), body.get("is_named")
    if type(compared) is not int or type(groups) is not int or type(alone) is not int:
        return None
    if not 0 < compared <= GREATEST or not 0 <= alone <= compared - groups <= compared:
        return None
    if each is None or not isinstance(is_named, bool):
        return None
    return GroupSizes(compared, groups, alone, each, is_named)


def _position(value: object) -> int | None:
    return value if type(value) is int and POSITION_MIN <= value <= POSITION_MAX else None


def _texts(body: object) -> tuple[str, ...] | None:
    if not isinstance(body, list) or not all(isinstance(text, str) for text in body):
        return None
    return tuple(body)

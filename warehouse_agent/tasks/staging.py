"""The folder of staged frames: written as received, decoded later (`staged_rows`).

An exchange has a folder of numbered files, each a sequence of length-prefixed frames, and a note
that says what was compared, and where (`ExchangeIdentity`). Frames received before an interruption
stay there. The next attempt decodes them and compares the working copy with the source again
(decision 4), so no staged row is sent twice. A frame is admitted before it is kept
(`frame_admission`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Self

from driftline.errors import FrameDamaged, Locked, WarehouseUnavailable
from driftline.rows import frames
from driftline.values.types import Recipe

from warehouse_agent.config import Fragment
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.planning.plan_inputs import CopyReason
from warehouse_agent.report import utc_now
from warehouse_agent.storage import staged_files
from warehouse_agent.storage.staged_files import BEGAN, COPIED, EXPECTED, NOTE
from warehouse_agent.storage.store import PRIVATE, Store, read_at
from warehouse_agent.transport.frame_admission import StagingRoom

FILE_BYTES = 4 << 20  # a process that ends loses less than this
FREE_SHARE = 2  # half of the free bytes may be staged: data files need as many
ROOM_BYTES_MIN = 64 << 20  # on a small disk its reserve is the limit
_LENGTH_BYTES = 4
_REASONS = {reason.value for reason in CopyReason}

Take = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExchangeIdentity:
    """An exchange by what it compares, a version in the columns of a recipe, and where."""

    base_version: int | None
    recipe: str
    source: str
    address: str
    relation: str

    @classmethod
    def of(cls, fragment: Fragment, base_version: int | None, recipe: Recipe) -> Self:
        """Return the exchange of a fragment."""
        source = fragment.source
        return cls(base_version, recipe.id.hex(), source.name, source.address, fragment.relation)

    @property
    def compared(self) -> tuple[object, object]:
        """Return what is compared, wherever."""
        return self.base_version, self.recipe

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Return the exchange that `to_json` wrote; what is damaged is as no exchange is."""
        version = body.get("base_version")
        texts = [body.get(one.name) for one in fields(cls)[1:]]
        valid = (text if isinstance(text, str) else "" for text in texts)
        return cls(version if type(version) is int else None, *valid)

    def to_json(self) -> dict[str, object]:
        """Return the exchange as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StagedExchange:
    """An unfinished exchange, whose rows are staged.

    Attributes:
        folder: of its files.
        rows: in them; None: an older release wrote them, and does not tell.
        copied: it had asked for all rows, why; None: it had not, or an older release wrote it.
        began: when its first rows were staged; None: not known.
    """

    folder: str
    rows: int | None = None
    copied: CopyReason | None = None
    began: datetime | None = None

    @classmethod
    def of(cls, folder: str, files: Iterable[str], note: Mapping[str, object]) -> Self:
        """Return the exchange of a folder by its files and its note."""
        copied, began = note.get(COPIED), None
        with suppress(ValueError):
            began = datetime.fromisoformat(str(note.get(BEGAN)))
        reason = CopyReason(copied) if isinstance(copied, str) and copied in _REASONS else None
        return cls(folder, staged_files.rows_of(files), reason, began)


@dataclass
class Staging:
    """The staging folder of one fragment."""

    store: Store
    name: str

    def leftovers(
        self, wanted: ExchangeIdentity, *, anywhere: bool = False
    ) -> list[StagedExchange]:
        """Return the exchanges like this one, the oldest first; remove all others.

        Args:
            anywhere: they may have compared the same with another relation.
        """
        folders = self.store.folders(PRIVATE, "staging", self.name)
        found = self._like(folders, wanted, anywhere=anywhere)
        kept = {one.folder for one in found}
        for folder in folders:
            if folder not in kept:
                self.store.remove(PRIVATE, "staging", self.name, folder)
        return found

    def staged(self, wanted: ExchangeIdentity, *, anywhere: bool = False) -> list[StagedExchange]:
        """Return the exchanges like this one, the oldest first; arguments as of `leftovers`."""
        folders = self.store.folders(PRIVATE, "staging", self.name)
        return self._like(folders, wanted, anywhere=anywhere)

    def _like(
        self, folders: Sequence[str], wanted: ExchangeIdentity, *, anywhere: bool
    ) -> list[StagedExchange]:
        found = []
        for folder in folders:
            body = self.store.read_json(PRIVATE, "staging", self.name, folder, NOTE)
            noted = ExchangeIdentity.from_json(body)
            is_like = noted == wanted or (anywhere and noted.compared == wanted.compared)
            if is_like and (files := self._files(folder)):
                found.append(StagedExchange.of(folder, files, body))
        return found

    def begin(
        self, exchange: ExchangeIdentity, take: Take | None = None, *, rows_expected: int = 0
    ) -> FrameWriter:
        """Return the writer of an exchange; its folder and note are written with its first file.

        Args:
            take: gets the URI of each file that is full, when it is written.
            rows_expected: of the source, by its estimate; 0: it had none.
        """
        walked = self.store.walk(PRIVATE, "staging", self.name)
        before = [one.place[-2:] for one in walked if one.place[-2].isdecimal()]
        number = max((int(folder) for folder, _ in before), default=0) + 1
        note = exchange.to_json() | {EXPECTED: rows_expected, BEGAN: utc_now()}
        rows = staged_files.rows_of(file for _, file in before) or 0
        folder = f"{number:06d}"
        return FrameWriter(self.store, self.name, folder, note, take, rows, is_alone=not walked)

    def drop_before(self, folder: str) -> bool:
        """Remove all exchanges but one, by its folder; return True if there were any."""
        others = [one for one in self.store.folders(PRIVATE, "staging", self.name) if one != folder]
        for other in others:
            self.store.remove(PRIVATE, "staging", self.name, other)
        return bool(others)

    def clear(self) -> None:
        """Remove all staged frames, after they were published or became useless."""
        self.store.remove(PRIVATE, "staging", self.name)

    def frame_bytes(self) -> int:
        """Return the bytes of all staged frames, those of a pass included."""
        staged = self.store.walk(PRIVATE, "staging", self.name)
        return sum(entry.size for entry in staged_files.frames_in(staged))

    def room(self, at_most: int | None) -> StagingRoom | None:
        """Return how much may be staged: `at_most` bytes, or a share of what is free now.

        None if there is no limit.
        """
        if at_most is not None:
            return StagingRoom(at_most, self.frame_bytes(), is_set=True)
        if (disk := self.store.disk(PRIVATE, "staging", self.name)) is None:
            return None
        staged = self.frame_bytes()
        return StagingRoom(max((disk[1] + staged) // FREE_SHARE, ROOM_BYTES_MIN), staged)

    def uris(self, folder: str, written: int = 0) -> list[str]:
        """Return the files of an exchange, for Spark.

        Args:
            written: how many there must be at least.

        Raises:
            Locked: some are gone. Without locks another agent may take them up meanwhile.
        """
        place = (PRIVATE, "staging", self.name, folder)
        uris = [self.store.uri(*place, file) for file in self._files(folder)]
        if len(uris) < written:
            raise _gone(self.name)
        return uris

    def _files(self, folder: str) -> list[str]:
        files = self.store.files(PRIVATE, "staging", self.name, folder)
        return [name for name, _ in files if name.endswith(staged_files.ENDING)]


@dataclass
class FrameWriter:
    """Writer of one exchange's frames; holds at most FILE_BYTES and a frame.

    `note` is written before the first file, so an exchange without rows costs no write; empty: the
    folder has none. `take` gets the URI of each file that is full. `rows_before`: that exchanges
    before this one staged, as far as it is known. `copied`: all rows were asked for, why.
    `is_alone`: nothing was staged when it began.
    """

    store: Store
    name: str
    folder: str
    note: Mapping[str, object] = field(default_factory=dict)
    take: Take | None = None
    rows_before: int = 0
    copied: CopyReason | None = None
    is_alone: bool = False
    rows: int = 0  # in the files that were written
    _pieces: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _rows: int = 0
    _number: int = 0
    _file: str = ""  # the name of the file that was written last
    _noted: bytes = b""

    @property
    def files(self) -> int:
        """Return the number of files that were written."""
        return self._number

    def uris(self) -> list[str]:
        """Return the files that were written, for Spark. Raises Locked: some are gone."""
        return Staging(self.store, self.name).uris(self.folder, self._number)

    def add(self, frame: bytes) -> None:
        """Append a frame; write a file when there is enough for one. Raises FrameDamaged."""
        self._rows += frames.head(frame).digest.count
        self._pieces += [len(frame).to_bytes(_LENGTH_BYTES, "little"), frame]
        self._bytes += len(frame)
        if self._bytes >= FILE_BYTES:
            self.flush()
            if self.take is not None:
                self.take(self.store.uri(*self._place, self._file))

    def flush(self) -> None:
        """Write the held frames; call it after the last frame, and when the line is cut."""
        if not self._pieces:
            return
        self.store.refuse_full(self._bytes, *self._place)
        self._write_note()
        self._number += 1
        self._file = staged_files.file_name(self._number, self._rows)
        self.store.write(b"".join(self._pieces), *self._place, self._file)
        WarehouseFailpoint.FRAMES_STAGED.reach()
        self.rows += self._rows
        self._pieces, self._bytes, self._rows = [], 0, 0

    def drop(self) -> None:
        """Remove everything that this attempt staged."""
        self._pieces, self._bytes, self._rows, self.rows = [], 0, 0, 0
        self.store.remove(*self._place)

    def _write_note(self) -> None:
        """Write the note if it is new: rows may come before all rows are asked for."""
        if not self.note:
            return
        copied = None if self.copied is None else self.copied.value
        note = json.dumps({**self.note, COPIED: copied}).encode()
        if note != self._noted:
            self.store.write(note, *self._place, NOTE)
            self._noted = note
            WarehouseFailpoint.STAGING_BEGUN.reach()

    @property
    def _place(self) -> tuple[str, ...]:
        return PRIVATE, "staging", self.name, self.folder


def frames_of(uri: str) -> Iterator[bytes]:
    """Yield the frames of a staged file.

    Raises:
        FrameDamaged: it does not consist of frames.
        Locked: it is gone. Without locks another agent may have taken it up.
        WarehouseUnavailable: it cannot be read.
    """
    try:
        content = read_at(uri)
    except WarehouseUnavailable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _gone("") from error
        raise
    yield from _frames(content)


def _gone(name: str) -> Locked:
    return Locked(
        "Rows that came are gone: another agent took them up, or somebody removed them.",
        where=name,
        remedy="Run the refresh again.",
    )


def _frames(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        begin = at + _LENGTH_BYTES
        end = begin + int.from_bytes(content[at:begin], "little")
        if end > len(content):
            raise FrameDamaged("A staged file ends in the middle of a frame.")
        yield content[begin:end]
        at = end

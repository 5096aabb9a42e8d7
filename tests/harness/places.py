"""Files of a warehouse as a test looks at them without the product: on a disk or in a bucket.

A `BucketPath` has those methods of `pathlib.Path` that tests use, so that one test looks at both.
"""

from __future__ import annotations

import functools
import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Protocol, Self

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from obstore.store import S3Store

from tests.harness.object_stores import Bucket, chosen_bucket, on_disk
from warehouse_agent.config import StorageSettings

_BUCKET = "bucket"  # a file beside a warehouse that is in one: its name


@functools.total_ordering
class BucketPath:
    """A place in a bucket, by its key."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, PurePosixPath(key)

    def __str__(self) -> str:
        return f"s3://{self._bucket.name}/{self._key}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketPath) and str(self) == str(other)

    def __lt__(self, other: BucketPath) -> bool:
        return str(self) < str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, below: str | PurePosixPath) -> BucketPath:
        return BucketPath(self._bucket, str(self._key / below))

    @property
    def name(self) -> str:
        return self._key.name

    @property
    def stem(self) -> str:
        return self._key.stem

    @property
    def parent(self) -> BucketPath:
        return BucketPath(self._bucket, str(self._key.parent))

    def with_name(self, name: str) -> BucketPath:
        return self.parent / name

    def relative_to(self, above: BucketPath) -> PurePosixPath:
        return self._key.relative_to(above._key)

    def exists(self) -> bool:
        """Return True for an object, and for a folder that has one."""
        try:
            obstore.head(self._store, str(self._key))
        except FileNotFoundError:
            return next(self.rglob("*"), None) is not None
        return True

    def read_bytes(self) -> bytes:
        return bytes(obstore.get(self._store, str(self._key)).bytes())

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes | bytearray) -> int:
        obstore.put(self._store, str(self._key), bytes(data))
        return len(data)

    def write_text(self, text: str) -> int:
        return self.write_bytes(text.encode())

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: there are no folders."""

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok:
            obstore.head(self._store, str(self._key))
        obstore.delete(self._store, str(self._key))

    def rename(self, to: BucketPath) -> BucketPath:
        """Move an object, or all that is in a folder."""
        copy(self, to)
        remove(self)
        return to

    def rglob(self, pattern: str) -> Iterator[BucketPath]:
        return self.glob(f"**/{pattern}")

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yield objects, and never a folder."""
        parts = re.split(r"(\*\*/|\*)", pattern)
        known = {"**/": "(?:.*/)?", "*": "[^/]*"}
        wanted = re.compile("".join(known.get(part, re.escape(part)) for part in parts))
        prefix = f"{self._key}/"
        keys = [one["path"] for page in obstore.list(self._store, prefix) for one in page]
        for key in sorted(keys):
            if wanted.fullmatch(key.removeprefix(prefix)):
                yield BucketPath(self._bucket, key)

    @property
    def _store(self) -> S3Store:
        return self._bucket.store


class Place(Protocol):
    """A file or a folder: a `Path`, or a `BucketPath`."""

    @property
    def name(self) -> str: ...
    @property
    def stem(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    def __lt__(self, other: Self, /) -> bool: ...
    def __truediv__(self, below: str, /) -> Self: ...
    def with_name(self, name: str, /) -> Self: ...
    def relative_to(self, above: Self, /) -> PurePath: ...
    def exists(self) -> bool: ...
    def read_bytes(self) -> bytes: ...
    def read_text(self) -> str: ...
    def write_bytes(self, data: bytes | bytearray, /) -> int: ...
    def write_text(self, text: str, /) -> int: ...
    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None: ...
    def unlink(self, missing_ok: bool = False) -> None: ...
    def rename(self, to: Self, /) -> Self: ...
    def glob(self, pattern: str, /) -> Iterator[Self]: ...
    def rglob(self, pattern: str, /) -> Iterator[Self]: ...


def parquet(place: Place) -> pq.ParquetFile:
    """Open a data file."""
    return pq.ParquetFile(io.BytesIO(place.read_bytes()))


def write_parquet(rows: pa.Table, place: Place, **options: Any) -> int:
    """Write a data file; return its bytes."""
    file = io.BytesIO()
    pq.write_table(rows, file, **options)
    return place.write_bytes(file.getvalue())


def move(place: Place, to: Place) -> None:
    """Move a file or a folder, also between a disk and a bucket."""
    copy(place, to)
    remove(place)


def remove(place: Place) -> None:
    """Remove a file, or a folder and all that is in it, if it is there."""
    if isinstance(place, Path):
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        return
    for file in [*place.rglob("*")]:
        file.unlink()
    place.unlink(missing_ok=True)


def copy(place: Place, to: Place) -> None:
    """Copy a file, or a folder and all that is in it, also between a disk and a bucket."""
    if isinstance(place, Path) and isinstance(to, Path):
        shutil.copytree(place, to) if place.is_dir() else shutil.copy(place, to)
        return
    files = [file for file in place.rglob("*") if not isinstance(file, Path) or file.is_file()]
    for file in files:
        target = to / str(file.relative_to(place))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    if not files:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(place.read_bytes())


class Table(DeltaTable):
    """A table as a reader of Delta opens it, which knows nothing of us; `root`: its folder."""

    def __init__(self, root: Place, version: int | None, options: dict[str, str] | None) -> None:
        super().__init__(str(root), version, options)
        self.root = root


class InWarehouse:
    """A warehouse in the folder `disk`, or in `bucket`, unless that is None."""

    disk: Path
    bucket: Bucket | None

    def choose(self, folder: Path, template: Path | None = None) -> None:
        """Let it be in a folder, or in a new bucket where the switch says so.

        template: the folder of an earlier one, with a copy of which it begins.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.disk, self.bucket = folder / "warehouse", chosen_bucket()
        if self.bucket is None:
            if template is not None:
                copy(template / "warehouse", self.disk)
            return
        (folder / _BUCKET).write_text(self.bucket.name)
        if template is not None:
            of = replace(self.bucket, name=(template / _BUCKET).read_text())
            copy(BucketPath(of, "lake"), self.root)

    @property
    def root(self) -> Place:
        """Return the warehouse's folder."""
        return self.disk if self.bucket is None else self.place(self.bucket.root)

    @property
    def warehouse(self) -> Path:
        """Return the warehouse's folder, for tests of a warehouse on a disk."""
        on_disk("the test is about a disk")
        return self.disk

    @property
    def storage(self) -> StorageSettings | None:
        """Return how a reader reaches it; None: it is on a disk."""
        return None if self.bucket is None else self.bucket.settings

    def end_leases(self) -> None:
        """Remove the locks of a command that was killed, which in a bucket end after a minute."""
        if self.bucket is not None:
            remove(self.root / "_driftline" / "locks")

    def place(self, uri: str) -> Place:
        """Return the place of a path or a URI, of a data file too."""
        if self.bucket is None:
            return Path(uri.removeprefix("file://"))
        return BucketPath(self.bucket, uri.removeprefix(f"s3://{self.bucket.name}/"))

    def delta(self, name: str, version: int | None = None) -> Table:
        """Open the table in a folder of the warehouse."""
        options = None if self.bucket is None else self.bucket.delta_options
        return Table(self.root / name, version, options)

"""A bucket of S3 or of a server that speaks its protocol, by obstore.

A small file is one object. Of several writers of a new one the store's conditional put lets one
succeed, and a file is changed under the condition that nobody else did meanwhile. A data file is
read by ranges and appears when it is closed. Nobody writes it again, so a process reads its footer
once, and all other bytes under the condition that it is the same object.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import obstore
import pyarrow as pa
from driftline.peer_text import one_line
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PreconditionError,
)
from obstore.store import S3Store
from pyarrow import fs

from warehouse_agent.config.storage import S3_SCHEME
from warehouse_agent.storage.backends.answers import (
    OTHERWISE,
    TEXT_CHARACTERS_MAX,
    Answer,
    answer,
    is_unexplained,
)
from warehouse_agent.storage.backends.credentials import Credentials
from warehouse_agent.storage.backends.interface import (
    Change,
    DataSource,
    NewFile,
    ReplacedError,
    StoreError,
    ended,
)
from warehouse_agent.storage.backends.lease import Lease, held
from warehouse_agent.storage.backends.request_counts import REQUESTS, Request

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode
    from obstore.store import S3Config

    from warehouse_agent.config import StorageSettings

TAIL_BYTES = 1 << 16  # read when a file is opened: its footer, as a rule
ENDS_BYTES = 16 << 20  # of footers that are known
HOLE_BYTES = 1 << 17  # between two ranges that one request reads
FETCH_BYTES = 32 << 20  # held of a file; a row group has seldom more
PART_BYTES = 8 << 20  # of an upload in parts
PARTS_AT_ONCE = 2
PAGE_FILES = 1000  # that a request lists, or deletes
CHANGE_S_MAX = 10.0  # tried again while others change a file
_PAUSE_S = 0.05
_RETRY_S = 60.0
_LOST = (AlreadyExistsError, PreconditionError)
_NO_BUCKET = "<Code>NoSuchBucket</Code>"  # obstore takes it for an object that is not there


class S3:
    """A bucket. Paths are `BUCKET/KEY`, as Arrow has them."""

    is_local = False

    def __init__(self, bucket: str, settings: StorageSettings) -> None:
        self.bucket = bucket
        self.credentials = Credentials(settings)
        self.store = S3Store(
            bucket,
            config=cast("S3Config", {**_address(settings), "conditional_put": "etag"}),
            client_options={"allow_http": settings.is_plain},
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S)},
            credential_provider=self.credentials.provider(),
        )
        self.system: fs.FileSystem = fs.PyFileSystem(_Files(self))
        self._ends: OrderedDict[str, _End] = OrderedDict()
        self._ends_lock = Lock()

    def path(self, uri: str) -> str:
        return uri.removeprefix(S3_SCHEME)

    def key(self, path: str) -> str:
        """Return the key of a path."""
        return path.removeprefix(self.bucket).strip("/")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of obstore as StoreError, with what the store answered.

        Raises:
            ConfigurationError: the credentials that are configured are not there.
        """
        try:
            yield
        except (BaseError, OSError) as error:  # its writers raise OSError
            is_gone = isinstance(error, FileNotFoundError) and not _has_no_bucket(error)
            if is_gone or isinstance(error, ReplacedError | StoreError):
                raise
            self.credentials.static()
            said = str(error)
            found = self.answer(said) or Answer(
                one_line(said, TEXT_CHARACTERS_MAX), OTHERWISE, False
            )
            raise StoreError(found.text, found.remedy) from error

    def answer(self, text: str) -> Answer | None:
        """Return the answer of the store in the text of an error; one that refuses the credentials
        names where they are from. None: there is none."""
        found = answer(text)
        if found is None or not found.is_refusal:
            return found
        return replace(found, text=f"{found.text} (with {self.credentials})")

    def read(self, path: str) -> bytes | None:
        found = self.tagged(path)
        return None if found is None else found[0]

    def tagged(self, path: str) -> tuple[bytes, str | None] | None:
        """Return the bytes of an object and its tag."""
        REQUESTS.made(path, Request.GET)
        with self.errors():
            try:
                result = obstore.get(self.store, self.key(path))
                return bytes(result.bytes()), result.meta["e_tag"]
            except FileNotFoundError as error:
                if _has_no_bucket(error):
                    raise
                return None

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[DataSource]:
        with self._ends_lock:
            known = self._ends.get(self.key(path))
        reader = _ReadFile(self, path, known)
        if known is None and (end := reader.footer) is not None:
            with self._ends_lock:
                self._ends[reader.key] = end
                while sum(len(one.data) for one in self._ends.values()) > ENDS_BYTES:
                    self._ends.popitem(last=False)
        with pa.PythonFile(reader, mode="r") as file:
            end = known or reader.footer
            yield DataSource(file, None if end is None else end.data, reader.fetch)

    def part(self, key: str, begin: int, end: int, tag: str | None) -> bytes:
        """Return some bytes of an object, if it is the one with this tag. Raises OSError;
        FileNotFoundError: there is none; ReplacedError: it is another one."""
        options: GetOptions = {"range": (begin, end)}
        if tag is not None:
            options["if_match"] = tag
        REQUESTS.made(self._path(key), Request.GET)
        with self.errors():
            try:
                return bytes(obstore.get(self.store, key, options=options).bytes())
            except (FileNotFoundError, PreconditionError) as error:
                with self._ends_lock:
                    self._ends.pop(key, None)
                if isinstance(error, FileNotFoundError):
                    raise FileNotFoundError(2, "No such file", self._path(key)) from None
                raise ReplacedError("It was replaced while it was read") from None

    def begun(self, path: str) -> NewFile:
        return _NewFile(self, path)

    def write(self, path: str, data: bytes, *, private: bool) -> None:  # noqa: ARG002 - of disks
        REQUESTS.made(path, Request.PUT)
        with self.errors():
            obstore.put(self.store, self.key(path), data)

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:  # noqa: ARG002
        # A put that was repeated after a lost answer finds its own object.
        return self.put_if(path, data, None) is not None or self.read(path) == data

    def change(self, path: str, change: Change) -> None:
        until, written = time.monotonic() + CHANGE_S_MAX, None
        while True:
            data, tag = self.tagged(path) or (b"", None)
            if data == written or (written := change(data)) is None:
                return  # also of a put that was repeated after a lost answer
            if self.put_if(path, written, tag) is not None:
                return
            if time.monotonic() > until:
                raise OSError("others change it again and again")
            time.sleep(_PAUSE_S * random.random())  # noqa: S311 - others wait as well

    def put_if(self, path: str, data: bytes, tag: str | None) -> str | None:
        """Write an object if it still has a tag, None: if there is none; return its new tag.

        Return None if it was not written, or by an earlier try of the same put.
        """
        mode: PutMode = "create" if tag is None else {"e_tag": tag}
        REQUESTS.made(path, Request.PUT)
        with self.errors():
            try:
                return obstore.put(self.store, self.key(path), data, mode=mode)["e_tag"] or ""
            except _LOST:
                return None
            except FileNotFoundError:  # somebody removed it
                if tag is None:
                    raise
                return None

    def append(
        self, path: str, line: bytes, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        def longer(data: bytes) -> bytes | None:
            before = ended(data)
            if b"\n" + line + b"\n" in b"\n" + before:
                return None  # by a put that was repeated after a lost answer
            return (shorten(before) if len(data) >= bytes_max else before) + line + b"\n"

        self.change(path, longer)

    def listed(self, path: str, *, recursive: bool) -> list[fs.FileInfo]:
        key = self.key(path)
        prefix = key and key + "/"
        REQUESTS.made(path + "/", Request.LIST)
        with self.errors():
            if recursive:
                found = [meta for page in obstore.list(self.store, prefix) for meta in page]
                folders: list[str] = []
            else:
                listing = obstore.list_with_delimiter(self.store, prefix)
                found, folders = [*listing["objects"]], [*listing["common_prefixes"]]
        more_pages = (len(found) + len(folders) - 1) // PAGE_FILES
        REQUESTS.made(path + "/", Request.LIST, max(more_pages, 0))
        # SeaweedFS lists an empty folder as an object of its name.
        files = [self._info(meta) for meta in found if meta["path"] != key]
        return files + [fs.FileInfo(self._path(f), fs.FileType.Directory) for f in folders]

    def sizes(self, path: str, files: Collection[str]) -> dict[str, int]:
        """Return what is known of files, as `Backend.sizes`, by lists that begin at the next file.

        That is one request where little else lies between them, at most one for each; and one more
        for each that is not listed.
        """
        prefix, found, end = f"{self.key(path)}/".lstrip("/"), dict[str, int](), ""
        left = sorted(files, key=str.encode)  # the order of a list
        while left:
            # A name comes before the file, and none of a folder, which SeaweedFS takes for all that
            # is in it; nor dots alone, which no key has.
            folder, _, name = left[0].rpartition("/")
            before = f"{folder}/{name[:-1] if name[:-1].strip('.') else ' '}".lstrip("/")
            begin = prefix + max(before, end, key=str.encode)
            REQUESTS.made(path + "/", Request.LIST)
            with self.errors():
                pages = obstore.list(self.store, prefix, offset=begin, chunk_size=PAGE_FILES)
                page = next(iter(pages), [])
            found |= {meta["path"].removeprefix(prefix): meta["size"] for meta in page}
            if len(page) < PAGE_FILES:
                break
            end = page[-1]["path"].removeprefix(prefix)
            left = [file for file in left if file.encode() > end.encode()]
        for file in files:  # a list may be behind
            if file not in found and (info := self.info(f"{path}/{file}")).is_file:
                found[file] = info.size
        return {file: found[file] for file in files if file in found}

    def info(self, path: str) -> fs.FileInfo:
        """Return size and time of a file; of anything else that it is not there."""
        REQUESTS.made(path, Request.HEAD)
        with self.errors():
            try:
                return self._info(obstore.head(self.store, self.key(path)))
            except FileNotFoundError:
                return fs.FileInfo(path, fs.FileType.NotFound)
            except BaseError as error:
                if is_unexplained(str(error)):
                    REQUESTS.made(path, Request.GET)
                    with contextlib.suppress(FileNotFoundError):  # a read of it is told why
                        obstore.get(self.store, self.key(path), options={"range": (0, 1)})
                raise

    def _info(self, meta: Any) -> fs.FileInfo:
        at, size = meta["last_modified"], meta["size"]
        return fs.FileInfo(self._path(meta["path"]), fs.FileType.File, mtime=at, size=size)

    def _path(self, key: str) -> str:
        return f"{self.bucket}/{key.rstrip('/')}"

    def modified(self, path: str) -> datetime | None:
        mtime: datetime | None = self.info(path).mtime
        return mtime

    def make_folder(self, path: str) -> None:
        """Do nothing: there are no folders."""

    def remove_folder(self, path: str) -> None:
        keys = [self.key(info.path) for info in self.listed(path, recursive=True)]
        if keys:
            REQUESTS.made(path + "/", Request.DELETE, -(-len(keys) // PAGE_FILES))
            with self.errors(), contextlib.suppress(FileNotFoundError):
                obstore.delete(self.store, keys)

    def remove_file(self, path: str, above: int) -> None:  # noqa: ARG002 - there are no folders
        REQUESTS.made(path, Request.DELETE)
        with self.errors(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self.store, self.key(path))

    def disk(self, path: str) -> None:  # noqa: ARG002
        return None

    def delta_options(self) -> dict[str, str]:
        settings = self.credentials.settings
        options = _address(settings) | self.credentials.static()
        options |= {"conditional_put": "etag", "allow_http": str(settings.is_plain).lower()}
        return {f"aws_{name}": value for name, value in options.items()}

    def lock(self, path: str, name: str) -> AbstractContextManager[Lease]:
        return held(self, path, name)


def _has_no_bucket(error: Exception) -> bool:
    return _NO_BUCKET in str(error)


def _address(settings: StorageSettings) -> dict[str, Any]:
    address: dict[str, Any] = {}
    if settings.endpoint is not None:
        address["endpoint"] = settings.endpoint
        address["virtual_hosted_style_request"] = "false"
    if settings.region is not None or settings.endpoint is not None:
        address["region"] = settings.region or "us-east-1"
    return address


class _Files(fs.FileSystemHandler):  # type: ignore[misc]
    """The bucket as a file system of Arrow."""

    def __init__(self, backend: S3) -> None:
        self._of = backend

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Files) and self._of is other._of

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "s3"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._of.info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._of.listed(selector.base_dir, recursive=selector.recursive)

    def create_dir(self, path: str, recursive: bool) -> None:
        pass

    def delete_dir(self, path: str) -> None:
        self._of.remove_folder(path)

    def delete_file(self, path: str) -> None:
        self._of.remove_file(path, 0)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        if (data := self._of.read(path)) is None:
            raise FileNotFoundError(2, "No such file", path)
        return pa.BufferReader(data)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(_ReadFile(self._of, path), mode="r")

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise NotImplementedError  # who drops it could not say whether it is to appear

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _End:
    """Size in bytes and tag of an object, and its last bytes."""

    size: int
    tag: str | None
    data: bytes


class _ReadFile(io.RawIOBase):
    """An object that is read by ranges. Opening it reads its end, unless that is `known`."""

    def __init__(self, backend: S3, path: str, known: _End | None = None) -> None:
        self._of, self.key, self._at = backend, backend.key(path), 0
        self._end = known or self._asked(path)
        self._held = [(self._end.size - len(self._end.data), self._end.data)]

    def _asked(self, path: str) -> _End:
        """Return the last TAIL_BYTES of the object. Raises OSError."""
        REQUESTS.made(path, Request.GET)
        with self._of.errors():
            try:
                result = obstore.get(
                    self._of.store, self.key, options={"range": {"suffix": TAIL_BYTES}}
                )
                tail = bytes(result.bytes())
                return _End(result.meta["size"], result.meta["e_tag"], tail)
            except FileNotFoundError as error:
                if _has_no_bucket(error):
                    raise
                raise FileNotFoundError(2, "No such file", path) from None
            except BaseError:
                if self._of.info(path).size != 0:  # an empty object has no end to read
                    raise
                return _End(0, None, b"")

    @property
    def footer(self) -> _End | None:
        """Return the end as far as it is the footer of a Parquet file; None: it is longer."""
        tail = self._end.data
        if tail[-4:] != b"PAR1":
            return None
        size = int.from_bytes(tail[-8:-4], "little") + 8
        return replace(self._end, data=tail[-size:]) if 8 <= size <= len(tail) else None

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Hold ranges of bytes, those that lie close together by one request, until the next call;
        of more than FETCH_BYTES the first ones."""
        del self._held[1:]
        wanted: list[tuple[int, int]] = []
        for begin, end in sorted(ranges):
            if self._holding(begin, end) is not None:
                continue
            if wanted and begin - wanted[-1][1] <= HOLE_BYTES:
                wanted[-1] = (wanted[-1][0], max(end, wanted[-1][1]))
            else:
                wanted.append((begin, end))
        left = FETCH_BYTES
        for begin, end in wanted:
            if (left := left - (end - begin)) < 0:
                return
            self._held.append((begin, self._of.part(self.key, begin, end, self._end.tag)))

    def _holding(self, begin: int, end: int) -> bytes | None:
        for at, data in self._held:
            if at <= begin and end <= at + len(data):
                return data[begin - at : end - at]
        return None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end.size}[whence]
        self._at = offset + base
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        whole = self._end.size
        end = whole if size is None or size < 0 else min(self._at + size, whole)
        if (begin := self._at) >= end:
            return b""
        self._at = end
        if (held := self._holding(begin, end)) is not None:
            return held
        return self._of.part(self.key, begin, end, self._end.tag)


class _NewFile:
    """An object that is uploaded in parts, and is there when it is finished."""

    def __init__(self, backend: S3, path: str) -> None:
        self._upload = _Upload(backend, path)
        self.out = pa.PythonFile(self._upload, mode="w")

    def finish(self) -> int:
        self._upload.finish()
        return self._upload.tell()

    def abandon(self) -> None:
        self._upload.close()


class _Upload(io.RawIOBase):
    """An upload in parts. Closing it, as Python does with a file that is dropped, ends it without
    an object."""

    def __init__(self, backend: S3, path: str) -> None:
        self._of, self._path, self._at = backend, path, 0
        with backend.errors():
            self._out = obstore.open_writer(
                backend.store,
                backend.key(path),
                buffer_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")  # those of Arrow have signed bytes
        if self._at < PART_BYTES <= self._at + view.nbytes:
            REQUESTS.made(self._path, Request.PUT)  # the begin of an upload in parts
        with self._of.errors():
            self._out.write(view)
        self._at += view.nbytes
        return view.nbytes

    def finish(self) -> None:
        """Complete the upload, which the store may have done although it answers with an error: a
        completion that is repeated after a lost answer finds no upload."""
        super().close()
        parts = -(-self._at // PART_BYTES)
        # One object; or its parts and their end. Parts before it is finished are not counted.
        REQUESTS.made(self._path, Request.PUT, 1 if self._at < PART_BYTES else parts + 1)
        with self._of.errors():
            try:
                self._out.close()
            except (BaseError, OSError):
                if self._of.info(self._path).size != self._at:  # nobody else writes this name
                    raise

    def close(self) -> None:
        """Abort the upload, unless it is completed."""
        if not self.closed:
            super().close()
            if self._at >= PART_BYTES:
                REQUESTS.made(self._path, Request.DELETE)
            with self._of.errors():
                self._out.__exit__(OSError, None, None)

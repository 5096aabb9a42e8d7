"""Dump files: the content of a file, unpacked and in UTF-8, in pieces of bounded size.

Invariants: memory does not grow with the file, and what a packed file unpacks to is bounded: a gzip
or zstd bomb ends with an error. A packed file that is cut off is refused, not read to where it is
cut; python-zstandard's reader would take the cut for the end, so frames are followed here.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final

import zstandard
from driftline.errors import DatabaseRefused, LimitExceeded, ValueDoesNotFit

PIECE_BYTES: Final = 1 << 17  # its fields fit in a cache: twice as much takes a tenth longer
EXPANSION_MAX: Final = 200  # bytes unpacked for each packed one, beyond the first
EXPANSION_FREE_BYTES: Final = 64 << 20
_ZSTD_WINDOW_BYTES_MAX: Final = 32 << 20  # zstd --ultra -22 needs 128 MiB
# A block of four bytes may unpack to 128 KiB: a step must not unpack to more than 32 MiB.
_ZSTD_STEP_BYTES: Final = 1 << 10


def pieces(file: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    """Yield the content, unpacked by the ending of the name (`.gz`, `.zst`).

    Raises:
        DatabaseRefused: it is damaged or cut off.
        LimitExceeded: it unpacks to more than any dump does.
    """
    if name.endswith(".gz"):
        unpacked = _gunzipped(file, name)
    elif name.endswith(".zst"):
        unpacked = _unzstd(file, name)
    else:
        unpacked = iter(lambda: file.read(PIECE_BYTES), b"")
    total = 0
    limit = EXPANSION_FREE_BYTES + EXPANSION_MAX * size
    for piece in unpacked:
        total += len(piece)
        if total > limit:
            raise LimitExceeded(
                f"The file {name!r} has {size:,} bytes and unpacks to more than {limit:,}.",
                remedy="Deliver it unpacked, if it is no mistake.",
            )
        for start in range(0, len(piece), 2 * PIECE_BYTES):  # a step of zstd may be 32 MiB
            yield piece[start : start + 2 * PIECE_BYTES]


def _gunzipped(file: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while piece := packed.read(PIECE_BYTES):
                yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(name, "gzip", error) from None


def _unzstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    maker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    frame = None
    held: list[bytes] = []
    size = 0
    try:
        while step := file.read(_ZSTD_STEP_BYTES):
            while step:
                frame = frame or maker.decompressobj()
                piece = frame.decompress(step)
                held.append(piece)
                size += len(piece)
                step, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
            if size >= PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
    except zstandard.ZstdError as error:
        raise _damaged(name, "zstd", error) from None
    if frame is not None:
        raise _damaged(name, "zstd", EOFError("it ends in a frame"))
    if size:
        yield b"".join(held)


def _damaged(name: str, form: str, error: Exception) -> DatabaseRefused:
    return DatabaseRefused(
        f"The file {name!r} is damaged or was delivered in part ({form}: {error}).",
        remedy="Deliver it again, and mark it as complete only then.",
        abroad=f"Its file is damaged or was delivered in part ({form}).",
    )


def in_utf8(source: Iterator[bytes], encoding: str, name: str) -> Iterator[bytes]:
    """Yield text of an encoding in UTF-8; text in UTF-8 as it is, to be checked by lines.

    Raises:
        ValueDoesNotFit: bytes that are no text of the encoding.
    """
    if encoding == "utf-8":
        yield from _without_mark(source, name)
        return
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    lines = 1
    ended = False
    while not ended:
        piece = next(source, b"")
        ended = not piece
        try:
            text = decoder.decode(piece, final=ended)
        except UnicodeError as error:
            done = error.object[: error.start] if isinstance(error, UnicodeDecodeError) else b""
            raise unfit_text(name, encoding, lines + done.count(b"\n"), str(error)) from None
        lines += text.count("\n")
        if text:
            yield text.encode()


def _without_mark(source: Iterator[bytes], name: str) -> Iterator[bytes]:
    first = next(source, b"")
    if first.startswith(codecs.BOM_UTF8):
        raise ValueDoesNotFit(
            f"The file {name!r} begins with a byte-order mark, which belongs to the name of the"
            " first column.",
            remedy='Set encoding = "utf-8-sig" in its format.',
        )
    yield first
    yield from source


def unfit_text(name: str, encoding: str, line: int, why: str) -> ValueDoesNotFit:
    """Return the error for bytes that are no text of an encoding."""
    return ValueDoesNotFit(
        f"The file {name!r} is not {encoding}, in line {line}: {why}.",
        remedy="Set `encoding` in its format as the file is written.",
        details={"file": name, "line": str(line)},
    )

"""Carry connections from outside into a network namespace: a process of `sources`.

    python -m benchmarks.refreshes.line_relay DESCRIPTOR HOST PORT

The listening socket was made by the parent, so it belongs to the parent's namespace. Connections to
HOST are made in that of this process. At most `_READ_BYTES` of each direction wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

_READ_BYTES = 16 << 10


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()


async def _relay(listener: socket.socket, host: str, port: int) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(host, port)
            for one in (writer, far_writer):
                one.transport.set_write_buffer_limits(_READ_BYTES)
            await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))

    server = await asyncio.start_server(accepted, sock=listener, limit=_READ_BYTES)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_relay(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))

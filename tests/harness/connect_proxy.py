"""A proxy on loopback that answers CONNECT, with one target behind whatever name is asked for."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK_BYTES = 1 << 14


class ConnectProxy:
    """Leads every tunnel to a port of loopback. A context manager.

    `asked`: the first lines of the requests that came.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(_CHUNK_BYTES)
                if not data:
                    return
                head += data
            self.asked.append(head.split(b"\r\n")[0].decode())
            with socket.create_connection(("127.0.0.1", self._port)) as target:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_pump, args=(target, client), daemon=True)
                back.start()
                _pump(client, target)
                back.join()


def _pump(giver: socket.socket, taker: socket.socket) -> None:
    """Hand on bytes until the giver ends."""
    with contextlib.suppress(OSError):
        while data := giver.recv(_CHUNK_BYTES):
            taker.sendall(data)
    with contextlib.suppress(OSError):
        taker.shutdown(socket.SHUT_WR)

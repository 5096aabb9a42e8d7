"""`ssh -C -L`: what an operator puts around a peer whose database protocol does not compress.

PostgreSQL's and MariaDB's clients send SQL and results as they are, so a peer's best by bytes may
be behind a compressing tunnel. This is OpenSSH as it comes: zlib, its own ciphers, one connection
that stands before the run and is not charged to it. It needs a login at the source's site; its
server's processor time counts as the source's. Keys and configuration live in the benchmark's
folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from functools import cache
from getpass import getuser
from pathlib import Path

from benchmarks.peers.sites import drop_rights
from tests.harness.servers import find_program
from tests.wan.link import SOURCE_ADDRESS, Link

SSH_PORT = 7480  # and up, one for each tunnel; the same numbers at the warehouse's loopback
START_S_MAX = 20.0
PRIVILEGES = Path("/run/sshd")  # compiled into sshd, which as root insists on it


@cache
def missing() -> str | None:
    """Why there is no tunnel here, or None."""
    if find_program("sshd") is None or shutil.which("ssh") is None:
        return "no sshd (Debian: openssh-server)"
    return None


class Tunnel:
    """From a port at the warehouse's loopback to one at the source. To be closed.

    Raises:
        OSError: it did not come about.
    """

    _numbers = itertools.count()

    def __init__(self, link: Link, folder: Path, to_port: int) -> None:
        number = next(self._numbers)
        self._folder = folder / f"ssh-{number}"
        self.host, self.port = "127.0.0.1", SSH_PORT + number
        self._write_files()
        log = self._folder / "log"
        with log.open("wb") as out:
            self._server = link.popen_source(
                [
                    *drop_rights(None, "KILL"),
                    str(find_program("sshd")),
                    *("-D", "-e", "-f", str(self._folder / "sshd_config")),
                ],
                stderr=out,
            )
            self._client = link.popen_warehouse(
                [
                    *drop_rights(None, "KILL"),
                    *("ssh", "-C", "-N", "-F", str(self._folder / "config")),
                    *("-L", f"{self.host}:{self.port}:{SOURCE_ADDRESS}:{to_port}", "source"),
                ],
                stdin=subprocess.DEVNULL,
                stderr=out,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def source_pid(self) -> int:
        return self._server.pid

    def close(self) -> None:
        for process in (self._client, self._server):
            process.terminate()
            process.wait()

    def _wait(self) -> None:
        """Until the client says that it forwards, which it does once it has logged in."""
        deadline = time.monotonic() + START_S_MAX
        log = self._folder / "log"
        while b"Entering interactive session" not in log.read_bytes():
            if any(process.poll() is not None for process in (self._server, self._client)):
                raise OSError(f"no tunnel: {log.read_text(errors='replace')[-300:]}")
            if time.monotonic() > deadline:
                raise OSError("no tunnel in time")
            time.sleep(0.05)

    def _write_files(self) -> None:
        self._folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)],
                check=True,
                capture_output=True,
            )
        (self._folder / "known_hosts").write_text(
            f"[{SOURCE_ADDRESS}]:{self.port} {(self._folder / 'host.pub').read_text()}"
        )
        (self._folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress {SOURCE_ADDRESS}\nHostKey {self._folder / 'host'}\n"
            f"AuthorizedKeysFile {self._folder / 'user.pub'}\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPidFile none\nUseDNS no\n"
        )
        (self._folder / "config").write_text(
            f"Host source\n  HostName {SOURCE_ADDRESS}\n  Port {self.port}\n  User {getuser()}\n"
            f"  IdentityFile {self._folder / 'user'}\n  IdentitiesOnly yes\n  BatchMode yes\n"
            f"  UserKnownHostsFile {self._folder / 'known_hosts'}\n  LogLevel DEBUG1\n"
            "  ExitOnForwardFailure yes\n  ConnectionAttempts 20\n"
        )

"""A Firebird server of another release of Debian, in a process of its own.

The engine of such a release needs a newer C library than this process has, so it is not opened
here: its own loader runs the server on a loopback port, and a client library that this process can
load asks it. Its folder holds all that it writes, its users among them; superuser `SYSDBA`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from tests.harness.server_versions import loaded
from tests.harness.servers import Server

USER: Final = "SYSDBA"
_FILES: Final = "usr/lib/x86_64-linux-gnu/firebird/4.0"
_PROGRAMS: Final = "usr/lib/firebird/4.0/bin"
_USERS: Final = "security4.fdb"
# Nothing is remembered between runs, and nobody beyond this machine is answered.
_SETTINGS: Final = """ServerMode = Super
RemoteBindAddress = 127.0.0.1
RemoteServicePort = {port}
DatabaseAccess = Full
AuthServer = Srp256
AuthClient = Srp256
UserManager = Srp
"""


class FirebirdServer(Server):
    """A server whose release is unpacked in a folder; `settings` are lines of its firebird.conf."""

    def __init__(self, root: Path, settings: str = "") -> None:
        self._root, self._settings = root, settings
        self.password = secrets.token_hex(8)
        super().__init__("firebird")

    def dsn(self, path: Path) -> str:
        """Return what the driver connects to for a file."""
        return f"{self.host}/{self.port}:{path}"

    def url(self, path: Path) -> str:
        """Return the URL of a file for the superuser, without the password."""
        return f"firebird://{USER}@{self.host}:{self.port}/{path}"

    def _environment(self) -> dict[str, str]:
        place = str(self.folder)
        return os.environ | {
            "FIREBIRD": place, "FIREBIRD_LOCK": place, "FIREBIRD_TMP": place, "FIREBIRD_MSG": place,
        }  # fmt: skip

    def _start(self) -> None:
        # Copies: a plug-in behind a symbolic link is refused for another name than was asked for.
        for name in ("plugins", "intl"):
            links = shutil.ignore_patterns("*.conf")  # to where the release installs them
            shutil.copytree(self._root / _FILES / name, self.folder / name, ignore=links)
        shutil.copy(self._root / "etc/firebird/4.0/fbintl.conf", self.folder / "intl")
        shutil.copy(self._root / _FILES / "firebird.msg", self.folder)
        (self.folder / "firebird.conf").write_text(
            _SETTINGS.format(port=self.port) + self._settings
        )
        users = self.folder / _USERS
        (self.folder / "databases.conf").write_text(f"security.db = {users}\n")
        (self.folder / "plugins.conf").touch()
        made = subprocess.run(
            [*loaded(self._root, f"{_PROGRAMS}/isql-fb"), "-q", "-bail"],
            input=f"CREATE DATABASE '{users}' USER '{USER}';\n"
            f"CREATE USER {USER} PASSWORD '{self.password}';\nCOMMIT;\n",
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"isql-fb failed:\n{made.stdout}{made.stderr}")
        self._launch(
            loaded(self._root, f"{_PROGRAMS}/firebird"), self._answers, env=self._environment()
        )

    def _answers(self) -> None:
        socket.create_connection((self.host, self.port)).close()

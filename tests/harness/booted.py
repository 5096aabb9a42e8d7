"""A machine that systemd has booted, in namespaces of its own, for units to run on.

    unshare ── systemd (process 1 of its namespace) ── the units of a test
       /etc                     ours, with changes that vanish (overlay)
       /run /opt /srv /var/…    empty
       network                  loopback
       control groups           below one that is made, and removed, for the machine

Processes are those of this kernel, files outside of the folders above are this machine's, and
nothing outlives the test. It needs root, overlayfs, cgroup2 and a systemd that boots here; where it
does not, `boot` says why and skips. The interpreter is bound to /opt/python, and folders of
packages to /opt/packages, because a unit with ProtectHome does not see a home folder.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from tests.harness.absent import absent, could_be_installed

BOOT_S_MAX = 20.0
COMMAND_S_MAX = 120.0
ENVIRONMENT = Path("/opt/driftline")
INTERPRETER = Path("/opt/python")
PACKAGES = Path("/opt/packages")
SYSTEMD = Path("/lib/systemd/systemd")
UNITS = Path("/lib/systemd/system")
# Of the system's units these alone: nothing of this machine is started a second time.
TARGETS = ("basic", "multi-user", "network-online", "shutdown", "sysinit", "timers", "umount")
JOURNAL = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")

_PR_SET_PDEATHSIG = 1
_BOOT = """
set -eu
mount --make-rprivate /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -o bind,ro /proc/sys /proc/sys
mkdir {held}/python {held}/changes
mount --bind {prefix} {held}/python
n=0; for p in {packages}; do n=$((n + 1)); mkdir {held}/$n; mount --bind $p {held}/$n; done
for folder in /run /opt /srv /var/lib /var/log /var/cache; do mount -t tmpfs tmpfs $folder; done
mkdir -p {interpreter} /run/units /var/lib/systemd
mount --bind {held}/python {interpreter}
while [ $n -gt 0 ]; do
    mkdir -p {at}/$n; mount --bind {held}/$n {at}/$n; n=$((n - 1))
done
mount -t tmpfs tmpfs {held}/changes; mkdir {held}/changes/upper {held}/changes/work
mount -t overlay overlay \\
    -o lowerdir=/etc,upperdir={held}/changes/upper,workdir={held}/changes/work /etc
rm -rf /etc/systemd/system; mkdir -p /etc/systemd/system /etc/sysusers.d
for unit in {units}; do cp $unit /run/units; done
printf '[Unit]\\nDescription=booted\\nWants=systemd-journald.service\\n' >/run/units/booted.target
mount --make-rshared /  # what systemd mounts for a unit must reach it
export container=lxc SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/units
exec {systemd} --system --unit=booted.target --log-target=console --show-status=no
"""


@dataclass(frozen=True)
class Machine:
    """A booted machine; `pid` is its first process, seen from here."""

    pid: int

    def run(self, command: str, *, cwd: Path = Path("/"), status: int = 0) -> str:
        """Run a command line of a root shell on it; return what it prints, on either stream."""
        words = ["nsenter", "-t", str(self.pid), "-a", "--", "bash", "-ec"]
        done = subprocess.run(
            [*words, f"cd {shlex.quote(str(cwd))}\n{command}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "LANG": "C.UTF-8"},
            text=True,
            check=False,
            timeout=COMMAND_S_MAX,
        )
        assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def path(self, place: str) -> Path:
        """A file of the machine, for what opens it by this name: resolved, it is one of ours."""
        return Path(f"/proc/{self.pid}/root{place}")

    def property(self, unit: str, name: str) -> str:
        return self.run(f"systemctl show --property={name} --value {unit}").strip()

    def install(self, wheel: Path) -> None:
        """Install the wheel into /opt/driftline, beside the packages of the tests."""
        count = len(_packages())
        paths = [str(PACKAGES / str(n)) for n in range(1, count + 1)]
        python = INTERPRETER / "bin" / f"python3.{sys.version_info.minor}"
        code = (
            "from pathlib import Path; from tests.harness.installation import install;"
            f"install(Path({str(wheel)!r}), Path({str(ENVIRONMENT)!r}),"
            f" interpreter={str(python)!r}, packages={paths!r})"
        )
        here = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
        library = f"LD_LIBRARY_PATH={INTERPRETER / 'lib'}"
        self.run(f"{library} PYTHONPATH={here} {sys.executable} -c {shlex.quote(code)}")


def _packages() -> list[str]:
    return [path for path in sys.path if path.endswith("-packages")]


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "it needs root"
    needed = ("unshare", "nsenter", "systemctl", "bash")
    missing = [name for name in needed if shutil.which(name) is None]
    missing += [str(p) for p in (SYSTEMD, UNITS) if not p.exists()]
    return f"no {', '.join(missing)}" if missing else None


def _group() -> Path | None:
    """A control group of the machine's own, below ours."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            ours = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].split("\n")[0]
            made = Path(place) / ours / f"driftline-booted-{os.getpid()}"
            try:
                made.mkdir()
            except OSError:
                return None
            return made
    return None


def _remove(group: Path) -> None:
    deadline = time.monotonic() + BOOT_S_MAX
    for folder, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except FileNotFoundError:
                break
            except OSError:
                assert time.monotonic() < deadline, f"{folder} has processes"
                time.sleep(0.05)


def _script(held: Path) -> str:
    units = [UNITS / f"{name}.target" for name in TARGETS] + [UNITS / name for name in JOURNAL]
    return _BOOT.format(
        held=held,
        prefix=shlex.quote(sys.base_prefix),
        packages=" ".join(map(shlex.quote, _packages())),
        interpreter=INTERPRETER,
        at=PACKAGES,
        units=" ".join(str(unit) for unit in units if unit.exists()),
        systemd=SYSTEMD,
    )


@contextmanager
def boot(folder: Path) -> Iterator[Machine]:
    """A machine with no unit of ours; `folder`, empty, holds its log."""
    if reason := _why_not():
        absent("SYSTEMD", reason, is_required_in_ci=could_be_installed())
    group = _group()
    if group is None:
        absent("SYSTEMD", "no control group (cgroup2) can be made here", is_required_in_ci=False)
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        (group / "cgroup.procs").write_text(str(os.getpid()))

    log = folder / "boot.log"
    spaces = ["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["unshare", *spaces, "--fork", "--mount-proc", "--kill-child", "bash", "-c",
             _script(folder)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=prepare,  # noqa: PLW1509 - one system call and one write
        )  # fmt: skip
    try:
        machine = _booted(process)
        if machine is None:
            said = log.read_text(errors="replace")[-500:]
            absent("SYSTEMD", f"it does not boot here: {said}", is_required_in_ci=False)
        yield machine
    finally:
        process.kill()
        process.wait()
        _remove(group)


def _booted(process: subprocess.Popen[bytes]) -> Machine | None:
    """The machine, once it has booted; None if it does not."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + BOOT_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() != "systemd":
                continue
            words = ["nsenter", "-t", pid, "-a", "--", "systemctl", "is-system-running"]
            said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            if said.strip() in ("running", "degraded"):
                return Machine(int(pid))
    return None

"""A standalone Spark cluster of processes on loopback: a master, and workers of one core each.

The processes end with the test run, however that ends. Executors end when they lose their worker.
PySpark's own package has all that is needed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.harness.jvm import jvm_options
from tests.harness.pair import environment
from tests.harness.processes import is_alive, parent
from tests.harness.servers import dying_with_parent

START_S_MAX = 240.0  # of a process on a busy machine
HOST = "127.0.0.1"
_SPARK = Path(pyspark.__file__).parent
_LOCAL = {
    "SPARK_HOME": str(_SPARK),
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it has a port of its own
}


class Cluster:
    """A master and its workers. A context manager."""

    def __init__(self, workers: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="driftline-cluster-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            said = self._launch("master.Master", [], r"Starting Spark master at (spark://\S+)")
            self.master = said
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise

    def add_worker(
        self, *, without: Path | None = None, host: str = HOST
    ) -> subprocess.Popen[bytes]:
        """Start a worker; `without`: a folder that it sees empty. Only root can hide one.

        host: Spark runs no second attempt of a task on the host of the first.
        """
        number = len(self._processes)
        words = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / str(number))]
        words.append(self.master)
        self._launch("worker.Worker", words, "Successfully registered", without, host)
        return self._processes[-1]

    def settings(self, **more: str) -> dict[str, str]:
        """Return `[spark]` of a driver on this machine; `_` in a name stands for a dot."""
        return {
            "spark.master": self.master,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": jvm_options(),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run now: the children of the workers."""
        workers = {process.pid for process in self._processes[1:]}
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # one that has just ended
                if folder.name.isdigit() and parent(int(folder.name)) in workers:
                    found.append(int(folder.name))
        return [pid for pid in found if is_alive(pid)]

    def close(self) -> None:
        """Kill every process; remove the folder."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(
        self,
        kind: str,
        words: list[str],
        ready: str,
        without: Path | None = None,
        host: str = HOST,
    ) -> str:
        """Start a process of the cluster; return what its log says when it is ready."""
        log = self.folder / f"{len(self._processes)}.log"
        command = [str(_SPARK / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *words]
        if without is not None:
            script = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, "sh", str(without), *command]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(**_LOCAL),
                cwd=self.folder,
                preexec_fn=dying_with_parent,  # noqa: PLW1509 - one system call, takes no lock
                start_new_session=True,
            )
        self._processes.append(process)
        deadline = time.monotonic() + START_S_MAX
        while (found := re.search(ready, log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{kind} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        return found[1] if found.groups() else found[0]

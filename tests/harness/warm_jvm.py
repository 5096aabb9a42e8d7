"""A JVM for the sessions of processes that tests start, one after the other.

Half of the time of a short command is the start of its JVM, and classes that were just loaded are
slow. PySpark takes one that is there if its environment names it, as under spark-submit. Each
process makes a Spark context of its own in it; that of the process before is stopped first, whether
the process ended or was killed.

Not for tests of how a JVM starts and ends, of interrupts, or of what Spark prints; nor of processes
that are killed while their session starts: a context that is being made is not stopped.
"""

from __future__ import annotations

import functools
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from py4j.clientserver import (  # type: ignore[import-untyped]
    ClientServer,
    JavaParameters,
    PythonParameters,
)
from pyspark.find_spark_home import _find_spark_home

from tests.harness.pair import environment

START_S_MAX = 120.0


def warm_jvm(**variables: str) -> dict[str, str]:
    """Return what the environment of the next process has to say, and stop the last one's context.

    The JVM starts with the first call, and ends with this process. With `variables` of its
    environment, such as JAVA_HOME, it is another one.
    """
    return _jvm(**variables).variables()


class _Jvm:
    def __init__(self, **variables: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder, "gateway")
            self._process = subprocess.Popen(
                [Path(_find_spark_home(), "bin", "spark-submit"), "pyspark-shell"],
                stdin=subprocess.PIPE,  # it ends when this is closed
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(
                    _PYSPARK_DRIVER_CONN_INFO_PATH=str(info), SPARK_CONNECT_MODE="0", **variables
                ),
                start_new_session=True,
            )
            deadline = time.monotonic() + START_S_MAX
            while not info.exists():
                assert self._process.poll() is None, "Spark's JVM did not start"
                assert time.monotonic() < deadline, "Spark's JVM does not start"
                time.sleep(0.05)
            port, length = struct.unpack("!ii", info.read_bytes()[:8])
            self._secret = info.read_bytes()[8 : 8 + length].decode()
        self._port = port
        self._gateway = ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=self._secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )

    def variables(self) -> dict[str, str]:
        contexts = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = contexts.getActive()
        if active.isDefined():
            active.get().stop()
        return {
            "PYSPARK_GATEWAY_PORT": str(self._port),
            "PYSPARK_GATEWAY_SECRET": self._secret,
        }


_jvm = functools.cache(_Jvm)

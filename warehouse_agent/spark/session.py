"""The Spark session of the command line, and the settings that correctness depends on.

A job that brings its own session calls `prepare` on it. Timestamps are written as microseconds
(only Spark can read years 1 and 9999 as INT96), the time zone is UTC, and Python workers use the
interpreter of the driver.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, DriftlineError

from warehouse_agent.spark.executors import cause, meaning
from warehouse_agent.spark.foreign_output import diverted_bytes, quiet_pyspark, reason
from warehouse_agent.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_DEFAULTS = {
    "spark.app.name": "driftline",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.parquet.compression.codec": "zstd",
}


def start(settings: dict[str, str]) -> SparkSession:
    """Start a session with the `[spark]` settings of the configuration, and defaults.

    Raises:
        ConfigurationError: no Java, or Spark does not start with these settings.
        SparkLost: its JVM ended meanwhile.
    """
    from pyspark.sql import SparkSession

    if "spark.remote" not in settings:
        ensure_java()
    quiet_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder
    if "spark.remote" in settings:
        chosen = {**settings, **_SESSION}
    else:
        log = files("warehouse_agent") / "log4j2.properties"
        quiet = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file://{log}"}
        chosen = {**_DEFAULTS, **quiet, **settings, **_SESSION}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    written = diverted_bytes()
    try:
        return prepare(builder.getOrCreate())
    except Exception as error:  # py4j, PySpark and Spark Connect have no common base class
        raise _did_not_start(error, written) from error


def _did_not_start(error: Exception, written: int) -> DriftlineError:
    """Return why Spark did not start; `written` bytes were diverted from stderr before."""
    from pyspark.errors import PySparkRuntimeError

    remedy = "Correct the settings in [spark]; --debug shows all that it wrote."
    if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        why = reason(written).rstrip(".") or "it says why above"
        return ConfigurationError(
            f"Spark's Java process did not start: {why}.", where="[spark]", remedy=remedy
        )
    if (known := meaning(error)) is not None:
        return known
    why = cause(error).rstrip(".")
    return ConfigurationError(f"Spark does not start: {why}.", where="[spark]", remedy=remedy)


def prepare(spark: SparkSession) -> SparkSession:
    """Set on a session what correctness depends on; return it."""
    for key, value in _SESSION.items():
        spark.conf.set(key, value)
    return spark


@dataclass
class Deferred:
    """A session that starts when it is first used, and again if its JVM has ended.

    Threads share it: the first one starts it, and the others wait.
    """

    settings: Mapping[str, str]
    _session: SparkSession | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def get(self) -> SparkSession:
        """Return the session. Raises ConfigurationError without a Java, or as `start`."""
        with self._lock:
            if self._session is not None and _has_ended():
                _forget()
                self._session = None
            if self._session is None:
                self._session = start(dict(self.settings))
            return self._session


def _has_ended() -> bool:
    """Return True if PySpark started a JVM that is gone."""
    from pyspark import SparkContext

    jvm = getattr(SparkContext._gateway, "proc", None)
    return jvm is not None and jvm.poll() is not None


def _forget() -> None:
    """Clear PySpark's references to its JVM, so that it starts another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None

"""The Spark session of the command line, and the settings that correctness depends on.

Jobs that bring a session of their own call `prepare` on it. What is set here and why: timestamps as
microseconds (INT96 breaks years 1 and 9999 for every reader but Spark), UTC, and Python workers of
the interpreter that runs the driver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from driftline.errors import ConfigurationError, DriftlineError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from warehouse_agent.spark.executors import cause, meaning
from warehouse_agent.spark.foreign_output import diverted_bytes, reason
from warehouse_agent.spark.java import ensure_java

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
    """A session with the configuration's `[spark]` settings as they are, ours where it has none.

    Raises:
        ConfigurationError: no Java, or Spark does not start with these settings.
        SparkLost: its JVM ended meanwhile.
    """
    if "spark.remote" not in settings:
        ensure_java()
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
    except Exception as error:  # py4j's, PySpark's and those of Spark Connect have no common base
        raise _did_not_start(error, written) from error


def _did_not_start(error: Exception, written: int) -> DriftlineError:
    """Return why Spark did not start.

    `written`: how many bytes others had written to stderr before it was started.
    """
    remedy = "Correct the settings in [spark]; --debug shows all that it wrote."
    if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED":
        said = reason(written).rstrip(".") or "it says why above"
        return ConfigurationError(
            f"Spark's Java process did not start: {said}.", where="[spark]", remedy=remedy
        )
    if (known := meaning(error)) is not None:
        return known
    said = cause(error).rstrip(".")
    return ConfigurationError(f"Spark does not start: {said}.", where="[spark]", remedy=remedy)


def prepare(spark: SparkSession) -> SparkSession:
    """Set on a session what correctness depends on; returns it."""
    for key, value in _SESSION.items():
        spark.conf.set(key, value)
    return spark


@dataclass
class Deferred:
    """A session that is started when it is first asked for, and again if its JVM has ended."""

    settings: Mapping[str, str]
    _started: list[SparkSession] = field(default_factory=list)

    def get(self) -> SparkSession:
        """Raises ConfigurationError: no Java."""
        if self._started and _has_ended():
            _forget()
            self._started.clear()
        if not self._started:
            self._started.append(start(dict(self.settings)))
        return self._started[0]


def _has_ended() -> bool:
    """Return True if the JVM that PySpark has started is no more."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _forget() -> None:
    """Let PySpark start another JVM: it keeps the one it had in these places, dead or alive."""
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None

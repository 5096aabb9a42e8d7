"""What the stages of a Spark session moved, by Spark's own counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that all stages of a session wrote to shuffles, and bytes of their tasks' results."""

    shuffled: int
    results: int


def moved(spark: SparkSession) -> Moved:
    """Return what the stages that a session remembers have moved so far."""
    context: Any = spark.sparkContext
    lists, jvm = context._jvm.java.util.ArrayList, context._jsc.sc()
    jvm.listenerBus().waitUntilEmpty()
    none = context._gateway.new_array(context._jvm.double, 0)
    found = jvm.statusStore().stageList(lists(), False, False, none, lists())
    stages = [found.apply(at) for at in range(found.size())]
    return Moved(
        sum(stage.shuffleWriteBytes() for stage in stages),
        sum(stage.resultSize() for stage in stages),
    )

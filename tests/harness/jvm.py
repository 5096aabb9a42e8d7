"""How the JVMs of tests run."""

from __future__ import annotations

import os
from typing import Final

# Names an archive of `tests.harness.class_data`.
_CLASS_DATA: Final = "SPARK_CLASS_DATA"

# A JVM of a test has rows by the hundred: its optimizing compiler would take half of the processor
# time, and never pay. One that lives for long would without the sizes compile methods again that it
# had no room for, and collect because of classes.
CHEAP_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
)


def jvm_options() -> str:
    """Return the options of every JVM that tests start."""
    archive = os.environ.get(_CLASS_DATA, "")
    if not os.path.exists(archive):
        return CHEAP_JVM
    # Nothing is said of an archive that does not fit, which is no error.
    return f"{CHEAP_JVM} -XX:SharedArchiveFile={archive} -Xlog:disable"

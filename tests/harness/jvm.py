"""How the JVMs of tests run."""

from __future__ import annotations

from typing import Final

# A JVM of a test lives for seconds and has rows by the hundred: its optimizing compiler would take
# half of the processor time, and never pay.
CHEAP_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

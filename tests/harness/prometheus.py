"""Prometheus's own tool and parser, for what is written for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.absent import absent, could_be_installed, set_up

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def promtool(*words: str | Path, input: bytes | None = None) -> str:
    """Run `promtool`, which must accept what it reads; return what it prints."""
    set_up("prometheus")
    if shutil.which("promtool") is None:
        absent("PROMTOOL", "tests/setup prometheus", is_required_in_ci=could_be_installed())
    ended = subprocess.run(["promtool", *words], input=input, capture_output=True, check=False)
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == 0, said
    return said


def numbers(page: bytes) -> Numbers:
    """Return the samples of a page that `promtool check metrics` accepts, by name and labels."""
    assert not promtool("check", "metrics", input=page)  # it prints what it would name otherwise
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(page.decode())
        for one in family.samples
    }


def of_table(found: Numbers, table: str, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a table under a name, by the values of their own labels."""
    return {
        tuple(value for label, value in labels if label not in ("table", "warehouse")): value
        for (sample, labels), value in found.items()
        if sample == f"driftline_{name}" and ("table", table) in labels
    }

"""A deferrable sensor: it succeeds when fragments of a Driftline warehouse are due.

It asks `driftline schedule --json`. If nothing is due it defers until the next moment that the
schedule names, at most LOOK later, so it holds no worker while it waits. Its result is the names of
the fragments that are due. A fragment about which nothing could be decided counts as due: its
refresh says what is wrong.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseSensorOperator

LOOK = timedelta(minutes=10)  # sources are asked what changed, and others may refresh


class DriftlineDueSensor(BaseSensorOperator):  # type: ignore[misc,unused-ignore]
    """Wait until a fragment of `names`, of all without any, is due.

    `config` is the path of warehouse.toml, `command` that of driftline where this task runs.
    """

    template_fields: Sequence[str] = ("config", "names", "command")

    def __init__(
        self, *, config: str, names: Sequence[str] = (), command: str = "driftline", **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.config, self.names, self.command = config, names, command

    def execute(self, context: Any, event: Any = None) -> list[str]:
        """Return the names that are due, or defer until the next moment."""
        del context, event
        words = [self.command, "--config", self.config, "schedule", "--ask", "--json", *self.names]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in said.stdout.splitlines()]
        if said.returncode and not found:
            raise RuntimeError(f"{' '.join(words)} ended with {said.returncode}: {said.stderr}")
        due = [one["name"] for one in found if one.get("error") or one.get("due")]
        if not due:
            moments = [datetime.fromisoformat(one["at"]) for one in found if one.get("at")]
            at = min([*moments, datetime.now(UTC) + LOOK])
            self.log.info("nothing is due before %s", at.isoformat())
            self.defer(trigger=DateTimeTrigger(moment=at), method_name="execute")
        return due

"""A warm warehouse agent for measurements: the name of a fragment or view in, reports out.

    python -m benchmarks.warm WAREHOUSE.TOML [--lazy-spark]

Spark starts before the first name is read, or with `--lazy-spark` when a step needs it.
"""

from __future__ import annotations

import sys

from warehouse_agent.events import Event, RefreshRetried
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select


def note_retries(event: Event) -> None:
    if isinstance(event, RefreshRetried):
        print(event.text, file=sys.stderr, flush=True)


def main() -> None:
    config = load(sys.argv[1])
    spark = DeferredSession.of(config)
    if "--lazy-spark" not in sys.argv:
        spark.get()
    runner = Runner(spark, config, (note_retries,))
    for line in sys.stdin:
        chosen = select(config, line.split(), False)
        for report in runner.refresh(chosen, Options()):
            print(report.to_json(), flush=True)


if __name__ == "__main__":
    main()

"""A warm warehouse agent for measurements: the name of a fragment or view in, reports out."""

from __future__ import annotations

import sys

from warehouse_agent.events import Event, RefreshRetried
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session
from warehouse_agent.views.inputs import load
from warehouse_agent.views.selection import select


def note_retries(event: Event) -> None:
    if isinstance(event, RefreshRetried):
        print(event.text, file=sys.stderr, flush=True)


def main() -> None:
    config = load(sys.argv[1])
    spark = session.start(dict(config.spark))
    runner = Runner(spark, config, (note_retries,))
    for line in sys.stdin:
        chosen = select(config, line.split(), False)
        for report in runner.refresh(chosen, Options()):
            print(report.to_json(), flush=True)


if __name__ == "__main__":
    main()

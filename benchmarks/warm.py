"""A warm warehouse agent for measurements: a fragment's name in, its refresh's report out."""

from __future__ import annotations

import sys

from warehouse_agent import config as configure
from warehouse_agent.events import Event, RefreshRetried
from warehouse_agent.refresh.job import Options
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session


def note_retries(event: Event) -> None:
    if isinstance(event, RefreshRetried):
        print(event.text, file=sys.stderr, flush=True)


def main() -> None:
    config = configure.load(sys.argv[1])
    spark = session.start(dict(config.spark))
    runner = Runner(spark, config, (note_retries,))
    for line in sys.stdin:
        chosen = configure.select(config, line.split(), False)
        for report in runner.refresh(chosen, Options()):
            print(report.to_json(), flush=True)


if __name__ == "__main__":
    main()

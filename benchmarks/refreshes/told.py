"""What it takes to tell a webhook and a heartbeat after a command, for few fragments and for many.

    python -m benchmarks.refreshes.told
    python -m benchmarks.refreshes.told --fragments 10 --fragments 500

Processor seconds of this process, the imports of the first row among them: where nothing is new;
where all fragments fail at once; where all are overdue, whose histories are read; and wall seconds
with a webhook that hangs. The receiver runs in this process, too: its seconds are among ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from driftline.errors import SourceUnreachable

from tests.harness.receiver import receiving
from warehouse_agent.config import WarehouseConfig, load
from warehouse_agent.history import refresh_history
from warehouse_agent.monitoring import tellers
from warehouse_agent.monitoring.after_command import AfterCommand, EndedCommand
from warehouse_agent.report import Report, utc_at
from warehouse_agent.storage.store import Store

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def configured(folder: Path, fragments: int, url: str) -> WarehouseConfig:
    """A configuration of hourly fragments, with histories of one success and 20 failures."""
    file = folder / "warehouse.toml"
    lines = ['[warehouse]\npath = "warehouse"\nfreshness_table = false']
    lines += ['[sources.erp]\naddress = "127.0.0.1:9"']
    lines += ["insecure = true"]
    names = [f"t{number}" for number in range(fragments)]
    lines += [f'[fragments.{name}]\nsource = "erp"\ninterval_max = "1h"' for name in names]
    lines += [f'[notify]\nwebhook = "{url}"\nheartbeat = "{url}"']
    file.write_text("\n".join(lines))
    config = load(file)
    store = Store.of(config)
    for name in names:
        for report in [well(name), *[failed(name)] * 20]:
            refresh_history.append(store, name, report.to_json())
    return config


def well(name: str) -> Report:
    return Report(name, version=1, previous_version=0, checked_at=utc_at(NOW.timestamp()))


def failed(name: str) -> Report:
    report = Report(name, version=1, previous_version=1)
    report.fail(SourceUnreachable("Nobody listens.", remedy="Start the agent."))
    return report


def told(config: WarehouseConfig, reports: Sequence[Report], at: datetime) -> tuple[float, float]:
    """Return processor and wall seconds."""
    ended = EndedCommand(config, Store.of(config), reports, at)
    cpu, wall = time.process_time(), time.monotonic()
    AfterCommand(tellers.of)(ended, lambda _: None)
    return time.process_time() - cpu, time.monotonic() - wall


@click.command()
@click.option("--fragments", type=int, multiple=True, default=(10, 500))
def main(fragments: tuple[int, ...]) -> None:
    """Print a row for each number of fragments."""
    for number in fragments:
        with TemporaryDirectory() as folder, receiving() as receiver:
            config = configured(Path(folder), number, receiver.url)
            first, _ = told(config, [well(name) for name in config.fragments], NOW)
            same, _ = told(config, [well(name) for name in config.fragments], NOW)
            failing, _ = told(config, [failed(name) for name in config.fragments], NOW)
            late, _ = told(config, [], NOW + timedelta(days=1))
            again, _ = told(config, [], NOW + timedelta(days=1))
            receiver.answer = 0
            _, hangs = told(config, [well(name) for name in config.fragments], NOW)
        print(
            f"{number} fragments: first {first:.3f} s, nothing new {same:.3f} s, all fail"
            f" {failing:.3f} s, all overdue {late:.3f} s, still {again:.3f} s; a webhook that"
            f" hangs {hangs:.2f} s more"
        )


if __name__ == "__main__":
    main()

"""Run `driftline` as `python -m warehouse_agent.cli`."""

from warehouse_agent.cli.main import main

main()

"""Run `driftline-source` as `python -m source_agent.cli`."""

from source_agent.cli.main import main

main()

"""Tests. `./tests/run` sets up and runs all of them; `tests/servers.py` starts the databases."""

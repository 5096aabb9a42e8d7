"""What is tried before Spark is started, and that Spark can be started after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from source_agent.serve import start
from tests.agents import configuration, make_orders
from tests.pair import environment

FORKS = 200
# Python forks with a function to run in the child, as pyspark does, instead of spawning.
FORKING = """
import subprocess, sys
from warehouse_agent.configure import Source
from warehouse_agent.link import Link

ended = set()
with Link(Source("local", sys.argv[1], insecure=True)) as link:
    for number in range(int(sys.argv[2])):
        if number % 10 == 0:
            link.describe("")
        child = subprocess.Popen(["true"], preexec_fn=lambda: None)
        ended.add(child.wait(30))
print(ended)
"""


def test_processes_start_while_a_channel_is_open(tmp_path: Path) -> None:
    """Spark's JVM is one: with gRPC's own handlers of fork(), three in a hundred were aborted."""
    make_orders(tmp_path / "erp.db", [(1, "x")])
    server = start(configuration(tmp_path, tmp_path / "erp.db", certs=None))
    try:
        words = [f"127.0.0.1:{server.port}", str(FORKS)]
        done = subprocess.run(
            [sys.executable, "-c", FORKING, *words],
            capture_output=True,
            text=True,
            env={k: v for k, v in environment().items() if k != "GRPC_ENABLE_FORK_SUPPORT"},
            check=False,
        )
    finally:
        server.stop()
    assert (done.returncode, done.stdout) == (0, "{0}\n"), done.stderr

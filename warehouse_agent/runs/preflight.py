"""What is tried at a source before Spark is started, so that a mistake is told in a second.

A JVM takes seconds to start and gigabytes to run. So the command line first makes a connection,
asks for the names that the source publishes to our certificate, and for the description of each
relation that is to be loaded for the first time. That is one small message for a refresh of tables
that exist; a first load needs its description anyway, and gets the one that is asked for here.
The names do not touch the source's database.

Not here: `doctor`, which looks at each step of the line by itself and says more (`examine`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError

from warehouse_agent.config import Fragment, Source
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.transport.channel import Link
from warehouse_agent.transport.handshake import connect, diagnose, nothing_answers, proxy_between

# For a TCP connection. A lost SYN is sent again after 1 s and after 3 s, so that two may be lost on
# the way to a satellite and back (0.6 s); the third comes after 7 s and is not worth the wait.
REACH_S: Final = 5.0


def reach(source: Source) -> None:
    """Make a TCP connection and close it.

    A source that is not there at the beginning is not waited for, unlike one that is lost later:
    whoever runs the command decides, and is told at once. Nothing is tried where a proxy is in
    between: gRPC's first call through it decides.

    Raises:
        SourceUnreachable: nothing listens at the address, or there is no such host.
    """
    if proxy_between(source) is not None:
        return
    try:
        connect(source, REACH_S).close()
    except TimeoutError as problem:  # whoever drops one packet drops the next as well
        raise nothing_answers(source, "does not answer in time") from problem
    except OSError as problem:
        if (error := diagnose(source)) is not None:
            raise error from problem


def ask(
    link: Link, store: Store, fragments: Iterable[Fragment], failed: dict[str, DriftlineError]
) -> dict[str, pb.DescribeReply]:
    """Find the relations of fragments; put those that fail, by fragment name, into `failed`.

    Returns:
        The descriptions that were asked for, by fragment name.

    Raises:
        DriftlineError: the source cannot be asked at all.
    """
    published = set(link.describe("").relations)
    described = {}
    for fragment in fragments:
        try:
            is_first = formats.head(store, fragment.name) is None
            # Of a name that is not in the list, the source itself says what is wrong.
            if is_first or fragment.relation not in published:
                described[fragment.name] = link.describe(fragment.relation)
        except Exception as problem:  # of one table, such as metadata that cannot be read
            failed[fragment.name] = mistake(problem, fragment.name)
    return described

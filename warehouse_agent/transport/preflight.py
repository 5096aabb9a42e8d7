"""Check a source before anything waits for Spark, so that mistakes are reported within a second.

A JVM takes seconds to start and gigabytes to run. So the command line first makes a connection; no
JVM is started before. Then it asks for the names of the relations that the source serves to our
certificate, which needs no database, and for the descriptions that first loads need anyway.
`doctor` has its own checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError

from warehouse_agent.config import Fragment, Source
from warehouse_agent.spark.executors import mistake
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.handshake import connect, diagnose, nothing_answers, proxy_between

# Time for a TCP connection. A lost SYN is sent again after 1 s and after 3 s, so two may be lost
# over a satellite (0.6 s for a round trip); the next comes after 7 s, which is too long to wait.
REACH_S: Final = 5.0


def reach(source: Source) -> None:
    """Make a TCP connection and close it.

    A source that does not answer at the beginning is reported at once and not retried, unlike one
    that is lost later: the person who runs the command decides. Through a proxy nothing is tried
    here: gRPC's first call decides.

    Raises:
        SourceUnreachable: nothing listens at the address, or there is no such host.
    """
    if proxy_between(source) is not None:
        return
    try:
        connect(source, REACH_S).close()
    except TimeoutError as problem:  # a firewall that drops one packet drops the next, too
        raise nothing_answers(source, "does not answer in time") from problem
    except OSError as problem:
        if (error := diagnose(source)) is not None:
            raise error from problem


def ask(
    link: SourceChannel,
    store: Store,
    fragments: Iterable[Fragment],
    failed: dict[str, DriftlineError],
    begun: Collection[str] = (),
) -> dict[str, pb.DescribeReply]:
    """Find the relations of fragments; put errors, by fragment name, into `failed`.

    begun: names of fragments whose tables are known to be there.

    Returns:
        The descriptions that the source was asked for, by fragment name.

    Raises:
        DriftlineError: the source cannot be asked at all.
    """
    served = link.relations()
    described = {}
    for fragment in fragments:
        try:
            # The source itself says what is wrong with a name that is not in the list.
            is_begun = fragment.name in begun or formats.has_log(store, fragment.name)
            if not is_begun or fragment.relation not in served:
                described[fragment.name] = link.describe(fragment.relation, fragment.beside)
        except Exception as problem:  # of one table, such as a folder that cannot be listed
            failed[fragment.name] = mistake(problem, fragment.name)
    return described

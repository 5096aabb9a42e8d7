"""What a question about activity costs: the call, the statement alone, and an exchange's share.

    python -m benchmarks.source.activity --tables 1000

A real PostgreSQL with small tables of 20 columns, read by a login that has SELECT alone, and the
source agent as a process, over mutual TLS on loopback. The statement is timed in an open session;
the call also opens one, as every question does. *open* is a session without a probe and with one
for all tables, which is what each exchange pays.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from driftline.relations.activity import CountedActivity

from source_agent.config.file import load
from source_agent.engines.interface import Limits
from source_agent.engines.postgresql.activity import activities
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.enrolment import enroll
from tests.harness.pair import SourceProcess
from tests.harness.servers import PostgreSQL
from warehouse_agent.config import Source
from warehouse_agent.transport.channel import SourceChannel

DATABASE = "activity"
_COLUMNS = ", ".join(f"c{i} int" for i in range(19))


def fill(server: PostgreSQL, tables: int) -> str:
    """Make the tables and a login that may read them; return its URL."""
    server.create_login("reader")
    server.create_database(DATABASE)
    with server.superuser(DATABASE) as owner:
        for i in range(tables):
            owner.execute(f"CREATE TABLE t{i} (id int PRIMARY KEY, {_COLUMNS})")
            owner.execute(f"INSERT INTO t{i} (id) SELECT generate_series(1, 10)")
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        owner.execute("ANALYZE")
    return server.url("reader", DATABASE)


def configured(folder: Path, url: str, tables: int) -> Path:
    """Write the DBA's file and the certificates."""
    enroll(folder / "certs", source_names=["127.0.0.1"])
    file = folder / "source.toml"
    file.write_text(
        f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\naudit_file = "audit.jsonl"\n'
        'certificate = "certs/source.pem"\nkey = "certs/source.key"\nclient_ca = "certs/ca.pem"\n'
        "[limits]\nactivity_seconds = 0.001\n"
        + "".join(f'[relations.t{i}]\ntable = "t{i}"\n' for i in range(tables))
    )
    return file


def timed(what: str, run: Callable[[], object], rounds: int) -> None:
    """Print the median, the least and the greatest time of some runs, in milliseconds."""
    took = []
    for _ in range(rounds + 1):  # the first one warms the caches
        began = time.perf_counter()
        run()
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)  # the time between two questions
    took = took[1:]
    shown = f"{statistics.median(took):8.1f} ms ({min(took):.1f} to {max(took):.1f})"
    print(f"{what:<34}{shown}", flush=True)


@click.command(help=__doc__)
@click.option("--tables", default=1000, show_default=True)
@click.option("--rounds", default=15, show_default=True)
def main(tables: int, rounds: int) -> None:
    """Time a question about activity."""
    with TemporaryDirectory() as name, PostgreSQL() as server:
        folder, url = Path(name), fill(server, tables)
        file = configured(folder, url, tables)
        relations = [served.relation for served in load(file).relations.values()]
        engine = connect(url, None, Limits())

        def opened(probed: list[Relation]) -> None:
            engine.open(probed).close()

        with closing(engine.open()) as session:
            assert isinstance(session, PostgresqlSession)
            session._connection.execute("COMMIT")  # the probe is no part of a transaction
            answers = activities(session.ask, relations)
            assert all(isinstance(said, CountedActivity) for said in answers.values()), answers
            timed(
                f"statement, {tables:,} tables", lambda: activities(session.ask, relations), rounds
            )
            timed("statement, 1 table", lambda: activities(session.ask, relations[:1]), rounds)
        timed("open", lambda: opened([]), rounds)
        timed(f"open, {tables:,} tables probed", lambda: opened(relations), rounds)
        certs = folder / "certs"
        with SourceProcess(file) as process:
            source = Source(
                "bench",
                process.address,
                ca=certs / "ca.pem",
                certificate=certs / "warehouse.pem",
                key=certs / "warehouse.key",
            )
            names = [relation.name for relation in relations]
            with SourceChannel(source) as link:
                timed(f"call, {tables:,} tables", lambda: link.activity(names), rounds)
                timed("call, 1 table", lambda: link.activity(names[:1]), rounds)
                timed("description, 1 table", lambda: link.describe(names[0]), rounds)


if __name__ == "__main__":
    main()

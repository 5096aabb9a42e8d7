"""A hot standby of a test's PostgreSQL server, fed by the primary's own WAL files.

It starts from a copy of the primary's data and replays each segment that the primary has finished.
It does not wait for readers: what recovery wants to remove is removed, and who still needs it is
cancelled. No pytest here.
"""

from __future__ import annotations

import subprocess
import time

from tests.harness.servers import PostgreSQL

REPLAY_S_MAX = 30.0


class Standby(PostgreSQL):
    """A context manager; `primary` is restarted while its data are copied."""

    def __init__(self, primary: PostgreSQL) -> None:
        self._primary = primary
        super().__init__()

    def _start(self) -> None:
        primary, data = self._primary, self.folder / "data"
        with primary.superuser() as owner:
            owner.execute("CHECKPOINT")  # the test's server does not promise to keep a commit
        primary.crash()
        subprocess.run(["cp", "-a", str(primary.folder / "data"), str(data)], check=True)
        primary.start()
        (data / "postmaster.pid").unlink(missing_ok=True)
        (data / "standby.signal").touch()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"restore_command = 'cp {primary.folder}/data/pg_wal/%f %p'\n"
                "wal_retrieve_retry_interval = '100ms'\n"
                "max_standby_archive_delay = 0\nmax_standby_streaming_delay = 0\n"
            )
        self._binary, self._user = primary._binary, primary._user
        if self._user is not None:
            subprocess.run(["chown", self._user, str(self.folder)], check=True)
        self.start()

    def await_replay(self) -> None:
        """Wait until all that the primary has committed can be read here."""
        with self._primary.superuser() as primary:
            (written,) = primary.execute("SELECT pg_switch_wal()").fetchone() or ("",)
        deadline = time.monotonic() + REPLAY_S_MAX
        with self.superuser() as standby:
            replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            while standby.execute(replayed, (written,)).fetchone() != (True,):
                assert time.monotonic() < deadline, "it replays"
                time.sleep(0.05)

    def await_conflict(self, database: str) -> None:
        """Wait until recovery has cancelled a statement in a database."""
        with self._primary.superuser() as primary:
            primary.execute("SELECT pg_switch_wal()")
        deadline = time.monotonic() + REPLAY_S_MAX
        with self.superuser() as standby:
            conflicts = "SELECT confl_snapshot FROM pg_stat_database_conflicts WHERE datname = %s"
            while standby.execute(conflicts, (database,)).fetchone() == (0,):
                assert time.monotonic() < deadline, "no conflict"
                time.sleep(0.05)

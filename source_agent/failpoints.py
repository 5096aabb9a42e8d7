"""The failpoints of the source agent, in the order in which an exchange reaches them."""

from __future__ import annotations

from driftline.failpoints import Failpoint


class SourceFailpoint(Failpoint):
    """A step of an exchange at which a test may let it fail (`driftline.failpoints`)."""

    ACCEPTED = "source.accepted"  # a TCP connection, nothing read of it
    AUTHENTICATED = "source.authenticated"  # the client of an exchange is known
    GRANTED = "source.granted"  # an opening may have its relation; no session yet
    SNAPSHOT_OPENED = "source.snapshot_opened"
    BATCH_READ = "source.batch_read"  # in the middle of a scan
    VERDICT_SENT = "source.verdict_sent"
    FRAME_SENT = "source.frame_sent"
    LAST_FRAME_SENT = "source.last_frame_sent"
    FINISHED_SENT = "source.finished_sent"
    SESSION_CLOSING = "source.session_closing"

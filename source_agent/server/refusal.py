"""Convert an error to what the other side may see.

A `DriftlineError` says what happened, where and what to do. Any other exception is an internal
error: the other side gets a reference, the log gets the traceback under it, and the text of the
exception, which nobody reviewed, stays on this machine.
"""

from __future__ import annotations

import logging
import secrets

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, InternalError

_log = logging.getLogger("driftline.source")


def known(problem: Exception) -> DriftlineError:
    """Return a DriftlineError as it is; log any other and return InternalError with a reference."""
    if isinstance(problem, DriftlineError):
        return problem
    reference = secrets.token_hex(4)
    _log.error("unexpected error %s", reference, exc_info=problem)
    return InternalError(
        f"The source agent met an internal error; its log has it under {reference}.",
        details={"reference": reference},
    )


def refusal(error: DriftlineError, description: pb.Description | None = None) -> pb.Refused:
    """Return the error as a message."""
    return pb.Refused(
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        where=error.where,
        details=error.details,
        description=description,
    )

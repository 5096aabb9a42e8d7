"""An error on its way to the other side.

Ours says what happened, where and what to do. Anything else is our mistake: the other side gets a
number to quote, the log gets the traceback under that number, and no text of an exception that
nobody vetted leaves the machine.
"""

from __future__ import annotations

import logging
import secrets

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, InternalError

_log = logging.getLogger("driftline.source")


def known(problem: Exception) -> DriftlineError:
    """The error as the other side may see it: ours, or a number to look up in the log."""
    if isinstance(problem, DriftlineError):
        return problem
    reference = secrets.token_hex(4)
    _log.error("unexpected error %s", reference, exc_info=problem)
    return InternalError(
        f"The source agent made a mistake; its log has it under {reference}.",
        details={"reference": reference},
    )


def refusal(error: DriftlineError, description: pb.Description | None = None) -> pb.Refused:
    """The error as a message."""
    return pb.Refused(
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        where=error.where,
        details=error.details,
        description=description,
    )

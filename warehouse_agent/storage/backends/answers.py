"""What an object store answered, as one line, and what to do about it.

obstore and delta-rs write an answer into a long text, with its request and all causes, and
obstore's type of the error depends on the call. So the text is read, wherever it comes from: the
code and the message that S3's protocol has, or the status, or why there was no answer at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from driftline.peer_text import one_line

TEXT_CHARACTERS_MAX = 300
# Beside codes of S3.
_NO_ANSWER, _NO_KEYS, _REDIRECT = "no answer", "no keys", "PermanentRedirect"
_STRANGE_NAME = "strange name"
_KEYS = (
    "Correct the keys there; or name another `profile` or `credentials_file` in [storage], or "
    "remove both for those of the environment or the machine."
)
_RIGHTS = "Give these credentials the rights that docs/operating/s3.md lists."
OTHERWISE = "Run `driftline doctor`: it tries the store."
# Codes of S3, or what stands for one, and the remedy.
_MEANINGS = (
    ({"NoSuchBucket"}, "Make the bucket, or correct `path` in [warehouse]."),
    ({"RequestTimeTooSkewed"}, "Set this machine's clock: the store compares it with its own."),
    (
        {_REDIRECT, "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"},
        "Set `region` in [storage] to the one in which the bucket is.",
    ),
    (
        {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401"},
        _KEYS,
    ),
    ({"AccessDenied", "403"}, _RIGHTS),
    (
        {"SlowDown", "ServiceUnavailable", "InternalError", "500", "502", "503", "504"},
        "Run the command again when the store is well; the last published version is untouched.",
    ),
    (
        {_NO_ANSWER},
        "Is the store up, and `endpoint` in [storage] its address? Run the command again.",
    ),
    (
        {_STRANGE_NAME},
        "Remove that object, or give it another name: Driftline makes none like it.",
    ),
    (
        {_NO_KEYS},
        "Name a `profile` or a `credentials_file` in [storage], or give this machine a role.",
    ),
)
_OF_CREDENTIALS = {_KEYS, _RIGHTS}
_REFUSALS = {"400", "401", "403"}
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_IS_ANSWER = re.compile(
    r"<Code>|Error performing|S3 error|necessary privileges|load\w* credentials|invalid path"
)
_PART = re.compile(r"<(Code|Message)>([^<]*)</")
_ASKED = re.compile(r"Error performing \w+ (https?://[^/\s]+)")
# At the metadata of a machine or a container.
_LOOKED = re.compile(r"loading credentials|/latest/(?:api|meta-data)/|://169\.254\.1")
_STATUS = re.compile(r"status code\W+(\d{3}) ?([A-Z][A-Za-z]+(?: [A-Z][A-Za-z]+)*)?")
# obstore lists nothing where one key has an empty part, one of dots alone or control characters.
_STRANGE = re.compile(r"invalid path: (?:Error parsing )?Path (\"[^\n]*?\")(?: contained|:)")
_SILENT = re.compile(r"HTTP error|error sending request|error decoding response|timed out")
_WHY = re.compile(
    r"Connection refused|[Cc]onnection reset|[Cc]onnection closed|Network is unreachable"
    r"|No route to host|failed to lookup address information|timed out"
    r"|[Cc]ertificate[^\n\",()]{0,80}"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a store.

    Attributes:
        text: one line: its code and message, its status, or why there is none.
        remedy: what to do.
        is_refusal: the credentials are refused, or lack a right.
    """

    text: str
    remedy: str
    is_refusal: bool


def answer(text: str) -> Answer | None:
    """Return the answer in the text of an error of obstore or delta-rs; None: there is none."""
    text = _COLOUR.sub("", text)
    if not _IS_ANSWER.search(text):
        return None
    if (strange := _STRANGE.search(text)) is not None:
        return _meant(f"the bucket has an object with the name {strange[1]}", _STRANGE_NAME)
    parts = dict(_PART.findall(text))
    if code := parts.get("Code"):
        said = parts.get("Message")
        return _meant(f"{code}: {said}" if said else code, code)
    if "redirect without LOCATION" in text:
        return _meant("The bucket is in another region", _REDIRECT)
    if _LOOKED.search(text):
        return _meant("no credentials were found", _NO_KEYS)
    if (status := _STATUS.search(text)) is not None:
        return _meant(" ".join(filter(None, status.groups())), status[1])
    if _SILENT.search(text):
        why, asked = _WHY.search(text), _ASKED.search(text)
        who = asked[1] if asked else "the store"
        return _meant(f"{who} does not answer ({why[0] if why else 'no connection'})", _NO_ANSWER)
    return _meant(text.partition("Debug source")[0], "")


def is_unexplained(text: str) -> bool:
    """Return True if the text of an error has a refusal's status alone: that of a head, whose
    answer has no body."""
    status = _STATUS.search(text)
    return status is not None and status[1] in _REFUSALS and "<Code>" not in text


def _meant(text: str, code: str) -> Answer:
    remedy = next((remedy for codes, remedy in _MEANINGS if code in codes), OTHERWISE)
    text = one_line(" ".join(text.split()), TEXT_CHARACTERS_MAX).rstrip(".")
    return Answer(text, remedy, remedy in _OF_CREDENTIALS)

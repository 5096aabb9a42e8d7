"""Predict how many requests a refresh makes of an object store, and their price.

The numbers are upper bounds, which tests/pair/object_stores/test_requests.py measures: they depend
on data files, their folders, and entries of the log since its last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINT_VERSIONS = 10  # of a log, between two checkpoints
_HEAD = 15  # requests that open a version, beside those for each entry since a checkpoint
_QUIET, _QUIET_FILE = 12, 2  # of a refresh that finds nothing, and for each data file
_CHANGED, _CHANGED_FILE = 20, 7  # of one that rewrites files, and for each of them
_COMMIT = 5
# By delta-rs 1.6: the reads of a checkpoint, and of an entry after it; lists and reads of a commit.
CHECKPOINT_READS, ENTRY_READS = 11, 2
COMMIT_LISTS = COMMIT_READS = 2
_BESIDE = 8  # of locks, the record of a running command, and reading a note that is changed
_QUIET_WRITES, _CHANGED_WRITES = 11, 26  # of these, what is priced as a write, without folders


@dataclass(frozen=True, slots=True)
class RequestForecast:
    """Requests of a refresh at most, if nothing changed and if all data files are rewritten.

    The prices are in the unit of [storage]; None: none is set.
    """

    unchanged: int
    rewritten: int
    unchanged_price: float | None = None
    rewritten_price: float | None = None


def opening_reads(version: int) -> int:
    """Return the reads by which delta-rs opens a version, beside one list.

    There is a checkpoint of every version that is a multiple of CHECKPOINT_VERSIONS and is not the
    newest (`log_entry.checkpoint`).
    """
    checkpoint = max(version - 1, 0) // CHECKPOINT_VERSIONS * CHECKPOINT_VERSIONS
    entries = version - checkpoint if checkpoint else version + 1
    return 1 + (CHECKPOINT_READS if checkpoint else 0) + ENTRY_READS * entries


def predict(
    version: int,
    files: int,
    folders: int,
    read_price: float | None = None,
    write_price: float | None = None,
) -> RequestForecast:
    """Return the requests of a refresh of a version with so many data files in these folders.

    read_price, write_price: of 1,000 requests.
    """
    head = _HEAD + ENTRY_READS * ((version - 1) % CHECKPOINT_VERSIONS + 1 if version else 1)
    unchanged = _QUIET + _QUIET_FILE * files + head + _BESIDE
    rewritten = _CHANGED + _CHANGED_FILE * files + head + _COMMIT + _BESIDE
    if read_price is None and write_price is None:
        return RequestForecast(unchanged, rewritten)
    prices = []
    for count, others in ((unchanged, _QUIET_WRITES), (rewritten, _CHANGED_WRITES)):
        writes = others + folders
        reads = max(count - writes, 0)
        prices.append((reads * (read_price or 0) + writes * (write_price or 0)) / 1000)
    return RequestForecast(unchanged, rewritten, *prices)

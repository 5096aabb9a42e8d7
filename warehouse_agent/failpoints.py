"""The failpoints of the warehouse agent, in the order in which a refresh reaches them."""

from __future__ import annotations

from driftline.failpoints import Failpoint


class WarehouseFailpoint(Failpoint):
    """A step of a refresh at which a test may let it fail (`driftline.failpoints`).

    Those of data files are reached where the step runs: in Spark's tasks, or in the driver.
    """

    KEY_WRITTEN = "warehouse.key_written"  # of a fragment; nothing else is there yet
    PREPARED = "warehouse.prepared"  # our side is reduced, the stream is not open
    VERSION_REPUBLISHED = "warehouse.version_republished"  # rows of a version are in a new one
    STAGING_BEGUN = "warehouse.staging_begun"  # the note of an exchange is there, no frame
    FRAMES_STAGED = "warehouse.frames_staged"  # a file of frames is there
    COMPARED = "warehouse.compared"  # between staging and the first data file
    ROWS_WRITTEN = "warehouse.rows_written"  # a data file is begun, and has no footer
    FILE_WRITTEN = "warehouse.file_written"  # a data file is whole, and nobody was told
    DATA_WRITTEN = "warehouse.data_written"  # all data files of a version
    FEED_WRITTEN = "warehouse.feed_written"
    PROVEN = "warehouse.proven"
    COMMITTING = "warehouse.committing"
    COMMITTED = "warehouse.committed"  # nothing after it
    STAGING_CLEARED = "warehouse.staging_cleared"
    NOTES_WRITTEN = "warehouse.notes_written"
    HISTORY_WRITING = "warehouse.history_writing"
    HISTORY_WRITTEN = "warehouse.history_written"
    MEMORY_WRITTEN = "warehouse.memory_written"  # of change, for the scheduler
    SMALL_FILE_WRITING = "warehouse.small_file_writing"  # below `_driftline/`, under another name
    SMALL_FILE_WRITTEN = "warehouse.small_file_written"  # whole, and still under another name
    SMALL_FILE_NAMED = "warehouse.small_file_named"
    VIEW_COMPUTED = "warehouse.view_computed"
    VIEW_COMMITTED = "warehouse.view_committed"
    FLIP_WRITTEN = "warehouse.flip_written"  # the file of the table of versions, not its commit
    FLIPPED = "warehouse.flipped"
    GARBAGE_REMOVED = "warehouse.garbage_removed"  # a file, by `gc`

"""Where a warehouse may lie: on a disk, or in a bucket of an object store."""

"""Row bytes to Arrow columns and back, and the columns of a published table."""

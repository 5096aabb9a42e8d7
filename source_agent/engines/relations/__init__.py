"""A relation: what its DBA wrote, how it is read, what is known of it; shared by all engines."""

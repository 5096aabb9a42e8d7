"""The DBA's limits on rates, simultaneous reads and hours; and the audit of what was read."""

"""The DBA's limits, kept: rates, places, hours; and the audit of what was read."""

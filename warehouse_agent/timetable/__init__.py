"""Decide when a table is due: timing, policies, closed hours, retries, claimed times. No I/O."""

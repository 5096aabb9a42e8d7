"""One suite per interface, run for everything that fills it."""

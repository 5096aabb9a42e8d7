"""Firebird 3.0, through firebird-driver and the client library."""

"""The DBA's command line: one module per command."""

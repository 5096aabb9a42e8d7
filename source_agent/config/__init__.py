"""The DBA's file, source.toml: what is published, to whom, and at what cost to the database."""

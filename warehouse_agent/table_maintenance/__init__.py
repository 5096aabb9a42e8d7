"""Published tables are verified, and files that no version needs are removed."""

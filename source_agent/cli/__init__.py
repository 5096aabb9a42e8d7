"""The DBA's command line: options, words and tables."""

"""Groups of rows that are compared as one, and shards of more rows than an exchange names."""

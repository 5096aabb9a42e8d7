"""PostgreSQL: read by COPY in binary, in one read-only snapshot."""

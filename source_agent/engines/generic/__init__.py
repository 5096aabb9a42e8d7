"""Any database with a dialect of SQLAlchemy: as true as its driver."""

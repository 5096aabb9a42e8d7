"""The Spark session, a Java for it, and what all of its tasks share."""

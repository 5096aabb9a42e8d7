"""The staleness of views: what it is, what makes it least, and when a view phase is due."""

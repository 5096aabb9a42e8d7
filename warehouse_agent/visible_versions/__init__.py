"""The versions that readers see, of one table and of all at once, and how they are moved."""

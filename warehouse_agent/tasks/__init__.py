"""Spark jobs on data files and staged frames."""

"""Dump files: a folder that receives snapshots as CSV, fixed width or Parquet, read as they are."""

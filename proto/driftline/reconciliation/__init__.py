"""The summaries by which two sets of rows are compared: ranges, sketches, groups (section 7)."""

"""The maintenance of a view: by affected keys, or recomputed; proven, and not committed yet."""

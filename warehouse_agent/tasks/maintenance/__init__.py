"""Steps of the maintenance of a view by affected keys: rows selected, files written again."""

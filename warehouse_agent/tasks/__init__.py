"""Steps over data files and staged frames, run by Spark or in this process."""

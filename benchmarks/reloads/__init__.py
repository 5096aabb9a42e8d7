"""A refresh beside what else brings a table: tools that load all of it again, in seconds."""

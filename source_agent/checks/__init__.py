"""What the DBA's commands find of a configuration, or propose for one, before the agent runs."""

"""How both sides find which rows differ, and the conversation that all methods share."""

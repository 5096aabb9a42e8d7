"""The simulated wide area link, and the pair over it."""

"""What a command finds about published tables, and what a refresh would do; it changes no table."""

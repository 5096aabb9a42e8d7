"""What is said of a published relation: its derivation, foreign keys, activity; and messages."""

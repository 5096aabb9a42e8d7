"""What messages are held to: bounds, pieces, and the agreement of two releases (section 9)."""

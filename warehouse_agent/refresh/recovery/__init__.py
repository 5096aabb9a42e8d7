"""What damage, a restored table or an attempt that was cut has left, and its repair."""

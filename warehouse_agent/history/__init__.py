"""What earlier refreshes of a fragment found and cost."""

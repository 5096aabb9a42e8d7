"""Views over several sites, and the relations that are kept for them."""

"""Views over fragments: read, selected, evaluated."""

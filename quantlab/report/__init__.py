"""Text, JSON and HTML for people."""

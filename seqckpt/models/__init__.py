"""TODO package line."""

"""Parts of our own."""

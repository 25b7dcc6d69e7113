"""A language model as policy: it scores what may be done, and is trained from reward."""

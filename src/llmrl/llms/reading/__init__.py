"""Parsers of language-model replies, used for all kinds of questions."""

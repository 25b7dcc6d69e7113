"""What a language model's reply means: the one reader of replies, for all who ask."""

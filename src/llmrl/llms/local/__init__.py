"""Language models whose weights are at hand, through the library transformers."""

"""Language models whose weights run in this process, through the library transformers."""

"""Simple rules that play well, as rows beside language models and learners."""

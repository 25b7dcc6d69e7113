"""Evaluation of saved runs: episodes of their agents are played, filmed and compared, also in suites of tests."""

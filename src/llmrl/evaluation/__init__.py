"""Evaluation of saved runs: agents play episodes in the environment of the run or in suites of tests."""

"""Clean Up and Harvest on the Melting Pot engine, with a worker process for each game (parallel copy)."""

"""Clean Up and Harvest on the Melting Pot engine: one game per worker process."""

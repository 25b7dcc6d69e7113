"""Clean Up and Harvest as batched tensor programs: the rules of Melting Pot, thousands of games in lock step."""

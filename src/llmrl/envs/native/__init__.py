"""Clean Up and Harvest as compiled loops: the rules of Melting Pot, one to thousands of games in lock step."""

"""Clean Up and Harvest with the rules of Melting Pot as compiled loops, for one to thousands of games in lock step."""

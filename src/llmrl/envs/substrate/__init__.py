"""Clean Up and Harvest, as both engines play them: rules, texts, maps, sprites and specification."""

"""Parts of Clean Up and Harvest that both engines share: rules, texts, maps, sprites and specification."""

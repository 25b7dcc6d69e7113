"""PettingZoo environments (worlds), with simultaneous moves or turns; games of OpenSpiel, TextArena and OpenEnv."""

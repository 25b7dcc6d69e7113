"""BabyAI-Text: levels of MiniGrid and BabyAI in words (Carta et al. 2023, arXiv 2302.02662)."""

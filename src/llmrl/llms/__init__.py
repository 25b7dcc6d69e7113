"""Chat models, the policies around them, prompts, and the parsing of replies."""

"""Chat models, the policies that wrap them, prompts, and the parsing of their replies."""

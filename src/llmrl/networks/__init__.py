"""Network modules: actor-critics and their components."""

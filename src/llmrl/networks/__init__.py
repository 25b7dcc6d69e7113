"""Network modules from which actor-critics are composed."""

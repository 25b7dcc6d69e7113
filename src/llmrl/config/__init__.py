"""Configs: options, digests, trust and the builder of parts."""

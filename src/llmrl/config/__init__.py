"""From overrides to a checked config: options, digests, trust and the builder of parts."""

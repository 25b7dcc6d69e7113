"""Everything around a loop: run folder, status, provenance, metrics, checkpoints, progress, signals."""

"""The infrastructure around a loop: run folder, status, provenance, metrics, checkpoints, progress and signals."""

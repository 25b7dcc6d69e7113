"""An experiment: its parts, what it needs first, its plan and its run."""

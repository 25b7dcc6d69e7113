"""Where the runs of a sweep are computed: one module for each backend."""

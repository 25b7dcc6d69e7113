"""Records and groups of runs, with their scores and reference lines, read from the files of run folders."""

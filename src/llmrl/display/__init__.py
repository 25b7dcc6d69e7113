"""What commands and jobs print: plans, tables of runs, sweeps and evaluations."""

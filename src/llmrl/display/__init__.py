"""Printed output of commands and jobs: plans, tables of runs, sweeps and evaluations."""

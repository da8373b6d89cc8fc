"""What the papers' figures need computed; a kind is a module with `Settings`, `compute` and perhaps `required_runs`.

A module may also define `READS_RESULTS_ONLY`, `READS_WEIGHTS` (of its required runs) and `RUNS_ARE_OPTIONAL`.
"""

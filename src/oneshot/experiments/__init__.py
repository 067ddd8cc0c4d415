"""Measurements: baselines, benchmarks, comparisons, the paper's tables.

Optional: of the package only the commands import it.
"""

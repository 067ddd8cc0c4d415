"""Measurements: baselines, benchmarks, comparisons, the paper's tables.

Optional: imported only by their commands.
"""

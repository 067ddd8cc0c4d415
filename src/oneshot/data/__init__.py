"""From names, files and objects to a `Dataset`: formats, splits, writers.

Imports `errors`, `system` and `graph`.
"""

"""Graph: facts, vocabulary and adjacency as arrays, in memory, saved and memory-mapped.

Imports `errors` and `system`.
"""

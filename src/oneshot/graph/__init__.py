"""Facts as arrays: the graph, its vocabulary and adjacency, in memory, saved and memory-mapped.

Imports `errors` and `system`.
"""

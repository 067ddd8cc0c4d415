"""Benchmarks: our code against plain implementations of the same work, in the same process."""

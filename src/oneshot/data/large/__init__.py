"""Graphs larger than memory, built on disk from streamed facts."""

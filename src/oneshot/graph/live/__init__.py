"""Mutable graphs: a base, an overlay of added and removed facts, and their persistent store."""

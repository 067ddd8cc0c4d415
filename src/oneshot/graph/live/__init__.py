"""A graph that changes: a base, an overlay of added and removed facts, and their durable store."""

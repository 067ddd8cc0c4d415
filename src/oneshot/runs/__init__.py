"""Reasoners on disk: saving, loading, training, resuming, import of official checkpoints."""

"""A reasoner on disk: written, read, trained, resumed, imported from official checkpoints."""

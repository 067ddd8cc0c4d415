"""Evaluation: filtered ranking of held-out facts by a reasoner, and coverage of a sampler."""

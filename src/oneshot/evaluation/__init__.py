"""How good a reasoner is: filtered ranking of held-out facts, and coverage of a sampler."""

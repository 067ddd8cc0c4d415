"""Baselines: simple or foreign ways to answer the same questions, under our ranking."""

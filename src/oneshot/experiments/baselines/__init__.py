"""Baselines: simple methods and other systems for the same queries, with our ranking."""

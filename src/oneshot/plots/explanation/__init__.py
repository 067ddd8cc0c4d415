"""Figures of explanations: the subgraph around an answer, its layout, and how it is drawn."""

"""Plots of explanations: the subgraph around an answer, its layout and its drawing."""

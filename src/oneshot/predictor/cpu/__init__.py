"""Fused kernels of the predictor for the CPU: passes over edges without copies, in C."""

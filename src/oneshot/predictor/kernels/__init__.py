"""Fused kernels of the predictor for the GPU, in Triton; imported only if used."""

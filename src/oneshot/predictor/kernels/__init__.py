"""The fused path of the predictor: Triton kernels for the GPU, imported only where they run."""

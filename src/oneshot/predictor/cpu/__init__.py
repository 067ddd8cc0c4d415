"""The fused path of the predictor on a CPU: passes over edges compiled from C, without copies."""

"""Graph, sampler and predictor together: predict, explain, calibrate, stream.

The only room below training that knows both samplers and predictor.
"""

"""Reasoner: graph, sampler and predictor together; prediction, explanation, calibration, streams.

The only package below training that imports both samplers and predictor.
"""

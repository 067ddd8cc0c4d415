"""The search: data-adaptive configurations, first of the predictor, then of the sampler.

Phase 1 freezes the sampler and searches the predictor's configuration with short trainings, guided
by a random forest with expected improvement. The best configuration is trained in full. Phase 2
freezes that predictor and searches the subgraph budget per relation, by evaluation only.
"""

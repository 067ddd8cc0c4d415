"""The search: data-adaptive configurations, first of the predictor, then of the sampler.

Phase 1 freezes the sampler and looks for the predictor's configuration: cheap trainings, guided by
a random forest with expected improvement. The best is trained in full. Phase 2 freezes that
predictor and looks for the subgraph's budget, relation by relation, by evaluation alone.
"""

"""Systems that couple sampling and reasoning, under our training and evaluation.

The paper cuts one subgraph per query before the predictor runs. The systems here choose entities
while they reason: layer by layer (`adaprop`, `astarnet`), or with a subgraph for each candidate
(`grail`). They are written from the descriptions in the papers of their authors, with the parts of
our predictor where these fit, and differ from the authors' code in details.
"""

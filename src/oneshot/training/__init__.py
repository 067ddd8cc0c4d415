"""From facts to a predictor: plan, trainer, steps, losses, schedule and time budget, observers."""

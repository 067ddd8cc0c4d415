"""Training of the predictor: plan, trainer, steps, losses, schedule, time budget and observers."""

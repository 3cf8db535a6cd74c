"""Training: config, typed batches, the step, the loop, and heads in closed form (CCA) for `rococo join`."""

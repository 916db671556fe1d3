"""The optimizers: GGS, its dense twin, its baselines, and what they share."""

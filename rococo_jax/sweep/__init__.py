"""Sweeps: one training run a point, all of them as one table and one picture."""

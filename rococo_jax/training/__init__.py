"""Fitting: heads in closed form (CCA) now; state, step and loop of gradient training beside it."""

"""Estimates, intervals, tests and fits. Pure functions over arrays."""

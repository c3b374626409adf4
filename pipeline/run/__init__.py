"""Foundations of every trial: the graph of stages, the store of finished ones, paths of files, and records."""
